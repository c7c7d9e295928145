"""One request from its headers to its end."""

from epp.request_control.director import Director
from epp.request_control.errors import (
    AdmissionDeniedError,
    AllFilteredError,
    BadRequestError,
    InternalError,
    NoCandidatesError,
    OutsideSubsetError,
    ProfileNotFoundError,
    RequestDroppedError,
    RequestError,
    SaturatedError,
    ScreenedOutError,
    ShuttingDownError,
    UnsupportedModeError,
)
from epp.request_control.exchange import Exchange
from epp.request_control.pending import PendingDecision
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import (
    PRODUCER_FAILURES,
    REQUEST_HEADERS_TO_SET,
    Admitter,
    AsyncDataProducer,
    DataProducer,
    EndCause,
    PreRequest,
    Producer,
    ProducerFailure,
    RequestHeaderProcessor,
    ResponseComplete,
    ResponseHead,
    ResponseHeader,
    Screener,
)
from epp.request_control.policies import OutcomeWatch, RequestPolicies

__all__ = [
    "PRODUCER_FAILURES",
    "REQUEST_HEADERS_TO_SET",
    "AdmissionDeniedError",
    "Admitter",
    "AllFilteredError",
    "AsyncDataProducer",
    "BadRequestError",
    "DataProducer",
    "Director",
    "EndCause",
    "Exchange",
    "InternalError",
    "NoCandidatesError",
    "OutcomeWatch",
    "OutsideSubsetError",
    "PendingDecision",
    "Pipeline",
    "PreRequest",
    "Producer",
    "ProducerFailure",
    "ProfileNotFoundError",
    "RequestDroppedError",
    "RequestError",
    "RequestHeaderProcessor",
    "RequestPolicies",
    "ResponseComplete",
    "ResponseHead",
    "ResponseHeader",
    "SaturatedError",
    "ScreenedOutError",
    "Screener",
    "ShuttingDownError",
    "UnsupportedModeError",
]
