"""A learned model of a fleet: service times, waits and room of each server, without I/O."""

from epp_plugins.predicted_time.constants import DEFAULTS, Constants
from epp_plugins.predicted_time.counted import CountedTokens
from epp_plugins.predicted_time.endpoint import EndpointModel, InFlight
from epp_plugins.predicted_time.fleet import NO_TOKENS, FleetModel
from epp_plugins.predicted_time.forecast import RequestForecast
from epp_plugins.predicted_time.prediction import Prediction
from epp_plugins.predicted_time.state_file import FleetState, StateFile

__all__ = [
    "DEFAULTS",
    "NO_TOKENS",
    "Constants",
    "CountedTokens",
    "EndpointModel",
    "FleetModel",
    "FleetState",
    "InFlight",
    "Prediction",
    "RequestForecast",
    "StateFile",
]
