"""One request from its headers to its end."""

from epp.request_control.director import Director
from epp.request_control.errors import (
    AllFilteredError,
    BadRequestError,
    InternalError,
    NoCandidatesError,
    RequestError,
    ShuttingDownError,
    UnsupportedModeError,
)
from epp.request_control.exchange import Exchange
from epp.request_control.plugins import DataProducer, EndCause, PreRequest, ResponseComplete

__all__ = [
    "AllFilteredError",
    "BadRequestError",
    "DataProducer",
    "Director",
    "EndCause",
    "Exchange",
    "InternalError",
    "NoCandidatesError",
    "PreRequest",
    "RequestError",
    "ResponseComplete",
    "ShuttingDownError",
    "UnsupportedModeError",
]
