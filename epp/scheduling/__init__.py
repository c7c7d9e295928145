"""The scheduling framework: profiles of filters, scorers and one picker.

An independent library that depends on the standard library only (GIE proposal 0845). It exports
everything that a plugin author needs.
"""

from epp.scheduling.client_ids import bounded_id
from epp.scheduling.cycle_state import CycleState
from epp.scheduling.decisive import DecidedBy, decided_by, decisive_term
from epp.scheduling.errors import (
    PLUGIN_FAULTS,
    DroppedError,
    FilterFailedError,
    NoEndpointsError,
    PluginContractError,
    ProfileHandlerError,
    ProfileLoopError,
    ReservationError,
    SchedulingError,
    UnknownProfileError,
    caused,
    described,
    without_request,
)
from epp.scheduling.guards import DEFAULT_DISABLE_AFTER, Guard, GuardRails, call_each
from epp.scheduling.keys import AttributeKey, StateKey
from epp.scheduling.load import EndpointLoad
from epp.scheduling.load_values import LoadColumns, LoadValues, load_columns
from epp.scheduling.observer import NullObserver, PluginObserver, RaisingObserver
from epp.scheduling.plugins import (
    CompositeFilter,
    Filter,
    FilterRun,
    Picker,
    Plugin,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    Scorer,
    StageDecider,
    WeightedScorer,
)
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.reservation import Reservation
from epp.scheduling.result_check import ResultWatch
from epp.scheduling.scales import scale_fault
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.shadow import ShadowPick, ShadowProfile
from epp.scheduling.types import (
    NEVER_SCRAPED,
    NO_SCORES,
    Endpoint,
    EndpointMetrics,
    LLMRequest,
    ProfileResult,
    SchedulingResult,
    ScoreColumns,
    ScoredEndpoint,
    ScoredEndpoints,
    scores_of,
)

__all__ = [
    "DEFAULT_DISABLE_AFTER",
    "NEVER_SCRAPED",
    "NO_SCORES",
    "PLUGIN_FAULTS",
    "AttributeKey",
    "CompositeFilter",
    "CycleState",
    "DecidedBy",
    "DroppedError",
    "Endpoint",
    "EndpointLoad",
    "EndpointMetrics",
    "Filter",
    "FilterFailedError",
    "FilterRun",
    "Guard",
    "GuardRails",
    "LLMRequest",
    "LoadColumns",
    "LoadValues",
    "NoEndpointsError",
    "NullObserver",
    "Picker",
    "Plugin",
    "PluginContractError",
    "PluginObserver",
    "PostSchedule",
    "PreSchedule",
    "ProfileHandler",
    "ProfileHandlerError",
    "ProfileLoopError",
    "ProfileResult",
    "RaisingObserver",
    "Reservation",
    "ReservationError",
    "ResultWatch",
    "Scheduler",
    "SchedulerProfile",
    "SchedulingError",
    "SchedulingResult",
    "ScoreColumns",
    "ScoredEndpoint",
    "ScoredEndpoints",
    "Scorer",
    "ShadowPick",
    "ShadowProfile",
    "StageDecider",
    "StateKey",
    "UnknownProfileError",
    "WeightedScorer",
    "bounded_id",
    "call_each",
    "caused",
    "decided_by",
    "decisive_term",
    "described",
    "load_columns",
    "scale_fault",
    "scores_of",
    "without_request",
]
