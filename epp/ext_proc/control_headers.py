"""Headers by which a client or a gateway talks to the endpoint picker, and nobody beyond it.

They are taken off before the model server sees the request. Some of them name servers to a sidecar
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

CONTROL_HEADERS = frozenset(
    {
        FAIRNESS,
        OLD_FAIRNESS,
        OBJECTIVE,
        OLD_OBJECTIVE,
        REWRITE,
        OLD_REWRITE,
        SUBSET_KEY,
        SERVED_KEY,
        TTL_HEADER,
        "x-llm-d-slo-ttft-ms",
        "x-slo-ttft-ms",
        "x-llm-d-slo-tpot-ms",
        "x-slo-tpot-ms",
        "x-llm-d-video-fps",
        "x-llm-d-video-duration-seconds",
        "x-llm-d-video-resolution",
        "x-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
        "x-kv-cache-source-host-port",
    }
)
"""By lower-case name; the destination is not among them, as it is set anew."""


def present(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return those of a request's headers, by lower-case name, that are to be taken off."""
    if CONTROL_HEADERS.isdisjoint(headers):
        return ()
    return tuple(sorted(CONTROL_HEADERS.intersection(headers)))
