"""Request headers that steer the endpoint picker or the sidecar of a model server.

They are removed before the request reaches the model server. Some tell the sidecar which other
servers to call (prefill, encode, data-parallel rank); only the endpoint picker may set these. Those
that a client may set can be forwarded to a second endpoint picker (``--keep-control-headers``).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from epp.ext_proc.gateway_metadata import POOL
from epp.ext_proc.processing_request import SERVED_KEY, SUBSET_KEY
from epp.request_control.force_header import FORCE_HEADER
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
        FORCE_HEADER,
        POOL,
        "x-llm-d-slo-ttft-ms",
        "x-slo-ttft-ms",
        "x-llm-d-slo-tpot-ms",
        "x-slo-tpot-ms",
        "x-llm-d-video-fps",
        "x-llm-d-video-duration-seconds",
        "x-llm-d-video-resolution",
    }
)
"""Control headers that a client may set, in lower case."""

CONTROL_HEADERS: Final = CLIENT_CONTROL_HEADERS | {
    SUBSET_KEY,
    SERVED_KEY,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
}
"""All control headers, in lower case, except the destination, which is overwritten instead."""


def present(
    headers: Mapping[str, str], removed: frozenset[str] = CONTROL_HEADERS
) -> tuple[str, ...]:
    """Return the headers of a request that must be removed, sorted.

    Args:
        headers: The request's headers by lower-case name.
        removed: Names of the headers to remove, in lower case.
    """
    if removed.isdisjoint(headers):
        return ()
    return tuple(sorted(removed.intersection(headers)))


@lru_cache(maxsize=8)
def removed_when_forwarding(ignored: frozenset[str]) -> frozenset[str]:
    """Return the headers to remove when client headers are forwarded to a second endpoint picker.

    Args:
        ignored: Client headers that this endpoint picker ignores (``--ignore-client-headers``),
            control headers or not; the second one must not get them.
    """
    return (CONTROL_HEADERS - CLIENT_CONTROL_HEADERS) | ignored
