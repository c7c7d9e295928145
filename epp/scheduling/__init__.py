"""The scheduling framework: profiles of filters, scorers and one picker.

An independent library with the standard library as its only dependency, as GIE proposal 0845 asks.
Everything a plugin author needs is exported here.
"""

from epp.scheduling.cycle_state import CycleState, StateKey
from epp.scheduling.errors import (
    NoEndpointsError,
    PluginContractError,
    ProfileLoopError,
    ReservationError,
    SchedulingError,
)
from epp.scheduling.load import EndpointLoad, Reservation
from epp.scheduling.observer import NullObserver, PluginObserver
from epp.scheduling.plugins import (
    Filter,
    Picker,
    Plugin,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    Scorer,
)
from epp.scheduling.profile import SchedulerProfile, WeightedScorer
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.types import (
    NEVER_SCRAPED,
    Endpoint,
    EndpointMetrics,
    LLMRequest,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    ScoredEndpoints,
)

__all__ = [
    "NEVER_SCRAPED",
    "CycleState",
    "Endpoint",
    "EndpointLoad",
    "EndpointMetrics",
    "Filter",
    "LLMRequest",
    "NoEndpointsError",
    "NullObserver",
    "Picker",
    "Plugin",
    "PluginContractError",
    "PluginObserver",
    "PostSchedule",
    "PreSchedule",
    "ProfileHandler",
    "ProfileLoopError",
    "ProfileResult",
    "Reservation",
    "ReservationError",
    "Scheduler",
    "SchedulerProfile",
    "SchedulingError",
    "SchedulingResult",
    "ScoredEndpoint",
    "ScoredEndpoints",
    "Scorer",
    "StateKey",
    "WeightedScorer",
]
