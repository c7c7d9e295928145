"""W3C Trace Context: the headers by which a request names its trace (``traceparent``, level 1)."""

import random
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

NO_TRACE: Final = f"00-{0:032x}-{0:016x}-00"
"""A placeholder of the length of every ``traceparent``, with invalid ids."""

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_NO_TRACE_ID = "0" * 32
_NO_SPAN_ID = "0" * 16
_SAMPLED = 1
_TRACE_BITS = 128
_SPAN_BITS = 64
_MAX_STATE_CHARS: Final = 512
_MAX_STATE_MEMBERS: Final = 32


class TraceParent(NamedTuple):
    """The caller's span."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    is_sampled: bool


def parent_of(headers: Mapping[str, str]) -> TraceParent | None:
    """Return the span that ``traceparent`` names; None if it is missing or invalid (§3.2)."""
    text = headers.get(TRACEPARENT)
    if text is None:
        return None
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    # Later versions may append fields; ff is not a version.
    if version == "ff" or (version == "00" and rest is not None):
        return None
    if trace_id == _NO_TRACE_ID or span_id == _NO_SPAN_ID:
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def state_of(headers: Mapping[str, str]) -> str:
    """Return ``tracestate`` for a span; "" if it is missing, or longer than §3.3.1 allows."""
    text = headers.get(TRACESTATE, "")
    if len(text) > _MAX_STATE_CHARS or text.count(",") >= _MAX_STATE_MEMBERS:
        return ""
    return text


def new_trace_number(rng: random.Random) -> int:
    """Return a trace id as a number; zero would be invalid."""
    return rng.getrandbits(_TRACE_BITS) or 1


def new_span_id(rng: random.Random) -> str:
    """Return a span id."""
    return f"{rng.getrandbits(_SPAN_BITS) or 1:016x}"


def traceparent(trace_id: str, span_id: str, *, is_sampled: bool) -> str:
    """Return the value of ``traceparent`` for requests below this span."""
    return f"00-{trace_id}-{span_id}-{is_sampled:02x}"
