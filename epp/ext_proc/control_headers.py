"""Headers for the endpoint picker, from a client or a gateway.

They are removed before the request reaches the model server. Some of them name servers to a sidecar
there (prefill, encode, ranks): only the endpoint picker may set these. The others can be kept for a
second endpoint picker behind this one.
"""

from collections.abc import Mapping
from functools import lru_cache

from epp.ext_proc.processing_request import SERVED_KEY, SUBSET_KEY
from epp.request_control.policies import (
    FAIRNESS,
    OBJECTIVE,
    OLD_FAIRNESS,
    OLD_OBJECTIVE,
    OLD_REWRITE,
    REWRITE,
)
from epp.request_control.queued_decision import TTL_HEADER

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
"""Control headers that the endpoint picker reads, by lower-case name."""

CONTROL_HEADERS = CLIENT_CONTROL_HEADERS | {
    SUBSET_KEY,
    SERVED_KEY,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
}
"""By lower-case name. The destination header is not included: it is overwritten instead."""


def present(
    headers: Mapping[str, str], removed: frozenset[str] = CONTROL_HEADERS
) -> tuple[str, ...]:
    """Return the control headers to remove from a request, by lower-case name and sorted.

    Args:
        headers: The request's headers.
        removed: The control headers that no request keeps.
    """
    if removed.isdisjoint(headers):
        return ()
    return tuple(sorted(removed.intersection(headers)))


@lru_cache(maxsize=8)
def removed_where_kept(ignored: frozenset[str]) -> frozenset[str]:
    """Return the headers to remove when clients' control headers are kept.

    Args:
        ignored: Client headers that are ignored here; the second endpoint picker must not see them
            either.
    """
    return CONTROL_HEADERS - (CLIENT_CONTROL_HEADERS - ignored)
