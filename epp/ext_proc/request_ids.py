"""Ids for requests that come without one: ``x-request-id`` and ``traceparent`` (W3C Trace Context).

The EPP records no spans. A new ``traceparent`` gives the spans of the gateway, the model server and
its sidecar one trace id. A share of the traces is marked as sampled, by the trace id as in
OpenTelemetry's ``TraceIdRatioBased``.
"""

import os
import random
from typing import Final

TRACEPARENT: Final = "traceparent"

NO_TRACE: Final = f"00-{0:032x}-{0:016x}-00"
"""A placeholder of the length of every ``traceparent``, with invalid ids."""

_TRACE_BITS = 128
_SPAN_BITS = 64
_RATIO_BITS = 63
"""Bits of the lower half of a trace id that decide about sampling."""
_random = random.Random()  # noqa: S311 - ids must be unique, not secret


def new_request_id() -> str:
    """Return a random UUID (version 4, RFC 9562 §5.4), as Envoy makes them."""
    # 1.2 us; uuid.uuid4() takes 2.5, most of it for a UUID object.
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def new_traceparent(ratio: float, rng: random.Random = _random) -> str:
    """Return the value of ``traceparent`` for a new trace.

    Args:
        ratio: Share of the traces to mark as sampled, 0.0 to 1.0.
        rng: Source of the ids.
    """
    # An id of zeros is invalid.
    trace_id, span_id = rng.getrandbits(_TRACE_BITS) or 1, rng.getrandbits(_SPAN_BITS) or 1
    half = trace_id & ((1 << 64) - 1)
    is_sampled = half >> 1 < ratio * (1 << _RATIO_BITS)
    return f"00-{trace_id:032x}-{span_id:016x}-{is_sampled:02x}"
