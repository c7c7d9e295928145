"""Headers by which a client or a gateway talks to the endpoint picker, and nobody beyond it.

They are taken off before the model server sees the request. Some of them name servers to a sidecar
there (prefill, encode, ranks): only the endpoint picker may set these.
"""

from collections.abc import Mapping

CONTROL_HEADERS = frozenset(
    {
        "x-llm-d-inference-fairness-id",
        "x-gateway-inference-fairness-id",
        "x-llm-d-inference-objective",
        "x-gateway-inference-objective",
        "x-llm-d-model-name-rewrite",
        "x-gateway-model-name-rewrite",
        "x-llm-d-slo-ttft-ms",
        "x-slo-ttft-ms",
        "x-llm-d-slo-tpot-ms",
        "x-slo-tpot-ms",
        "x-llm-d-video-fps",
        "x-llm-d-video-duration-seconds",
        "x-llm-d-video-resolution",
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
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
