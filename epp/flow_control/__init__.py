"""Flow control: requests wait in queues while the pool is full, and sessions dispatch them."""

from epp.flow_control.control import FlowControl
from epp.flow_control.controller import FlowController
from epp.flow_control.errors import FlowControlError
from epp.flow_control.flows import (
    Candidate,
    InFlight,
    NoPlaceError,
    Outcome,
    QueuedRequest,
    Revocable,
)
from epp.flow_control.interfaces import FlowObserver, RevocationObserver
from epp.flow_control.plugins import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    SessionListener,
    UsageLimitPolicy,
)
from epp.flow_control.pressure.saturation import SheddingAdmission
from epp.flow_control.settings import BandSettings, EvictionSettings, FlowSettings

__all__ = [
    "BandSettings",
    "Candidate",
    "EvictionFilter",
    "EvictionOrder",
    "EvictionSettings",
    "FairnessPolicy",
    "FlowControl",
    "FlowControlError",
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
    "SessionListener",
    "SheddingAdmission",
    "UsageLimitPolicy",
]
