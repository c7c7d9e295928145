"""``traceparent`` (W3C Trace Context) for requests that come without one.

Here begins the trace of such a request. No span of it is recorded here; what follows can be told by
one trace id in the gateway's, the model server's and its sidecar's spans. A share of the traces is
marked as sampled, by the trace id as OpenTelemetry's ``TraceIdRatioBased`` does.
"""

import random
from typing import Final

TRACEPARENT: Final = "traceparent"

NO_TRACE: Final = f"00-{0:032x}-{0:016x}-00"
"""As long as each value, and none itself."""

_TRACE_BITS = 128
_SPAN_BITS = 64
_RATIO_BITS = 63
"""Of the lower half of a trace id, by which it is decided."""
_random = random.Random()  # noqa: S311 - ids must differ, no more


def new_traceparent(ratio: float, rng: random.Random = _random) -> str:
    """Return the value of ``traceparent`` for a new trace.

    Args:
        ratio: Share of the traces, 0.0 to 1.0, that are marked as sampled.
        rng: Draws the ids.
    """
    # An id of zeros is none.
    trace_id, span_id = rng.getrandbits(_TRACE_BITS) or 1, rng.getrandbits(_SPAN_BITS) or 1
    half = trace_id & ((1 << 64) - 1)
    is_sampled = half >> 1 < ratio * (1 << _RATIO_BITS)
    return f"00-{trace_id:032x}-{span_id:016x}-{is_sampled:02x}"
