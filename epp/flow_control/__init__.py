"""Flow control: how full the pool is, and what that means for who asks."""

from epp.flow_control.admission import SheddingAdmission
from epp.flow_control.controller import FlowController
from epp.flow_control.observer import FlowObserver
from epp.flow_control.outcomes import Outcome
from epp.flow_control.plugins import (
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.flow_control.queues import Candidate, NoPlaceError, QueuedRequest
from epp.flow_control.settings import BandSettings, FlowSettings

__all__ = [
    "BandSettings",
    "Candidate",
    "FairnessPolicy",
    "FlowController",
    "FlowObserver",
    "FlowSettings",
    "NoPlaceError",
    "OrderingPolicy",
    "Outcome",
    "QueuedRequest",
    "SaturationDetector",
    "SheddingAdmission",
    "UsageLimitPolicy",
]
