"""Error responses of the Go EPP, for ``--compat=reference``.

The same requests are refused; only the response differs. The table is searched by the class of the
error, then by the class of its cause, because errors of parsers and of the scheduler are more
specific than the errors raised from them. An error that is not in the table keeps its own status,
drop reason and message: the Go EPP has the same, or no such error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epp.observability import MAX_RESPONSE_CHARS, printable
from epp.parsing import FieldMissingError, ModelMissingError, NotJsonError
from epp.request_control import (
    AdmissionDeniedError,
    AllFilteredError,
    EvictedError,
    NoCandidatesError,
    NoCandidatesForNoBodyError,
    NotCachedError,
    OutsideSubsetError,
    ProfileNotFoundError,
    RequestDroppedError,
    RequestError,
    SaturatedError,
    ScreenedOutError,
)
from epp.scheduling import SchedulingError

MakeMessage = Callable[[RequestError, BaseException | None], str]
"""Returns the message for an error and its cause."""


@dataclass(frozen=True, slots=True)
class ReferenceResponse:
    """The Go EPP's response to a client."""

    status: int
    drop_reason: str
    body: bytes
    """Usually ``inference error: <code> - <message>``, sent without a content-type."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What differs from the error itself; None for no difference."""

    message: str | MakeMessage | None = None
    status: int | None = None
    code: str | None = None
    drop_reason: str | None = None
    is_bare: bool = False
    """The body is the message alone."""


def _prefixed(prefix: str) -> MakeMessage:
    return lambda error, _: f"{prefix}: {error}"


def _unmarshalled(error: RequestError, cause: BaseException | None) -> str:
    detail = cause.detail if isinstance(cause, NotJsonError) else error
    return f"error unmarshaling request bodyMap: {detail}"


_FIELDS = {
    "prompt": "invalid completions request: must have prompt field",
    "messages": "invalid chat completions request: must have valid messages field",
}


def _without_field(error: RequestError, cause: BaseException | None) -> str:
    field = cause.field if isinstance(cause, FieldMissingError) else ""
    return _FIELDS.get(field, str(error))


_NO_DIFFERENCE = _Row()
_NO_CANDIDATES = _Row("failed to find endpoint candidates for serving the request")
_ALL_FILTERED = _Row("no endpoints available for the given request")
_NO_TARGET = _Row(
    _prefixed("failed to find target endpoint"),
    status=429,
    code="ResourceExhausted",
    drop_reason="",
)

_ROWS: Mapping[type, _Row] = {
    NotJsonError: _Row(_unmarshalled),
    ModelMissingError: _Row("model not found in request body"),
    FieldMissingError: _Row(_without_field),
    NoCandidatesError: _NO_CANDIDATES,
    NoCandidatesForNoBodyError: _Row(
        "no pods available in datastore", status=500, code="Internal", drop_reason=""
    ),
    OutsideSubsetError: _NO_CANDIDATES,
    ScreenedOutError: _Row("screeners eliminated all endpoint candidates"),
    SaturatedError: _Row("system saturated, sheddable request dropped", drop_reason=""),
    AdmissionDeniedError: _Row(
        _prefixed("request cannot be admitted"), status=500, code="Internal", drop_reason=""
    ),
    AllFilteredError: _ALL_FILTERED,
    RequestDroppedError: _ALL_FILTERED,
    NotCachedError: _Row("no decode worker has the requested KV cache"),
    ProfileNotFoundError: _NO_TARGET,
    EvictedError: _Row(is_bare=True),
    # A failed profile handler; other errors of the scheduler have become one of the above.
    SchedulingError: _NO_TARGET,
}


def reference_response(error: RequestError) -> ReferenceResponse:
    """Return the Go EPP's response to the request that ``error`` refuses."""
    row = _row_of(error)
    message = row.message(error, error.__cause__) if callable(row.message) else row.message
    code = error.code if row.code is None else row.code
    text = str(error) if message is None else message
    if not row.is_bare:
        text = f"inference error: {code} - {text}"
    return ReferenceResponse(
        error.status if row.status is None else row.status,
        error.drop_reason if row.drop_reason is None else row.drop_reason,
        printable(text, MAX_RESPONSE_CHARS).encode(),
    )


def _row_of(error: RequestError) -> _Row:
    for exception in (error, error.__cause__):
        for kind in type(exception).__mro__:
            if (row := _ROWS.get(kind)) is not None:
                return row
    return _NO_DIFFERENCE
