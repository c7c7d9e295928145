"""A learned model of a fleet: service times, waits and room of each server, without I/O."""

from epp_plugins.predicted_time.constants import DEFAULTS, Constants
from epp_plugins.predicted_time.endpoint import EndpointModel, InFlight
from epp_plugins.predicted_time.fleet import FleetModel, Prediction

__all__ = [
    "DEFAULTS",
    "Constants",
    "EndpointModel",
    "FleetModel",
    "InFlight",
    "Prediction",
]
