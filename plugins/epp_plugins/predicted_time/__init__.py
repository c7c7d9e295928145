"""A learned model of a fleet: the service time, wait and free room of each server, without I/O."""

from epp_plugins.predicted_time.constants import DEFAULTS, Constants
from epp_plugins.predicted_time.cost_table import CostTable, Prediction
from epp_plugins.predicted_time.counted import CountedTokens
from epp_plugins.predicted_time.endpoint import EndpointModel, PredictedRequest
from epp_plugins.predicted_time.fleet import NO_TOKENS, FleetModel
from epp_plugins.predicted_time.forecast import RequestForecast
from epp_plugins.predicted_time.hot_prefixes import BEGINNING_TOKENS, HotPrefixes
from epp_plugins.predicted_time.state_file import FleetState, StateFile, StateKeeper

__all__ = [
    "BEGINNING_TOKENS",
    "DEFAULTS",
    "NO_TOKENS",
    "Constants",
    "CostTable",
    "CountedTokens",
    "EndpointModel",
    "FleetModel",
    "FleetState",
    "HotPrefixes",
    "PredictedRequest",
    "Prediction",
    "RequestForecast",
    "StateFile",
    "StateKeeper",
]
