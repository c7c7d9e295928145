"""Headers that a client or a gateway addresses to the endpoint picker alone.

They are removed before the model server sees the request. Some of them name servers to a sidecar
there (prefill, encode, ranks): only the endpoint picker may set these.
"""

from collections.abc import Mapping

from epp.ext_proc.reading import SERVED_KEY, SUBSET_KEY
from epp.request_control.policies import (
    FAIRNESS,
    OBJECTIVE,
    OLD_FAIRNESS,
    OLD_OBJECTIVE,
    OLD_REWRITE,
    REWRITE,
)
from epp.request_control.queued import TTL_HEADER

CLIENT_CONTROL_HEADERS = frozenset(
    {
        FAIRNESS,
        OLD_FAIRNESS,
        OBJECTIVE,
        OLD_OBJECTIVE,
        REWRITE,
        OLD_REWRITE,
        TTL_HEADER,
        "x-llm-d-slo-ttft-ms",
        "x-slo-ttft-ms",
        "x-llm-d-slo-tpot-ms",
        "x-slo-tpot-ms",
        "x-llm-d-video-fps",
        "x-llm-d-video-duration-seconds",
        "x-llm-d-video-resolution",
    }
)
"""Control headers that requests are read for, by lower-case name."""

CONTROL_HEADERS = CLIENT_CONTROL_HEADERS | {
    SUBSET_KEY,
    SERVED_KEY,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
}
"""By lower-case name. The destination is not among them: it is overwritten instead."""


def present(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the control headers of a request, by lower-case name."""
    if CONTROL_HEADERS.isdisjoint(headers):
        return ()
    return tuple(sorted(CONTROL_HEADERS.intersection(headers)))
