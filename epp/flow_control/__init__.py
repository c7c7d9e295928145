"""Flow control: how full the pool is, and what that means for who asks."""

from epp.flow_control.controller import FlowController
from epp.flow_control.observer import FlowObserver, RevocationObserver
from epp.flow_control.plugins import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.flow_control.pressure.saturation import SheddingAdmission
from epp.flow_control.queues import (
    Candidate,
    InFlight,
    NoPlaceError,
    Outcome,
    QueuedRequest,
    Revocable,
)
from epp.flow_control.settings import BandSettings, EvictionSettings, FlowSettings

__all__ = [
    "BandSettings",
    "Candidate",
    "EvictionFilter",
    "EvictionOrder",
    "EvictionSettings",
    "FairnessPolicy",
    "FlowController",
    "FlowObserver",
    "FlowSettings",
    "InFlight",
    "NoPlaceError",
    "OrderingPolicy",
    "Outcome",
    "QueuedRequest",
    "Revocable",
    "RevocationObserver",
    "SaturationDetector",
    "SheddingAdmission",
    "UsageLimitPolicy",
]
