"""No part of a long prompt stays in memory while its response is generated."""

import gc
import json
import tracemalloc

import pytest

from epp.request_control import RoutedRequest
from epp_plugins.data_producers import approx_prefix_cache, token
from tools.harness.request_control import Epp, Policies, make_pool

KIB = 1024
TEXT = "x" * 256 * KIB


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param({"prompt": TEXT}, id="text"),
        pytest.param({"prompt": [7] * 64 * KIB}, id="token ids"),
        pytest.param({"prompt": TEXT, "tools": [{"name": TEXT}]}, id="tools"),
    ],
)
@pytest.mark.parametrize("target", ["llama", "alpaca"], ids=["as it is", "renamed"])
def test_nothing_of_a_prompt_is_kept_when_it_has_been_sent_on(
    prompt: dict[str, object], target: str
) -> None:
    epp = Epp(
        make_pool(),
        plugins=[
            token.TokenProducer("tokens", token.Params()),
            approx_prefix_cache.ApproxPrefixCacheProducer(
                "prefixes", approx_prefix_cache.Params(max_prefix_tokens_to_match=64 * KIB)
            ),
        ],
        policies=Policies(targets={"llama": target}),
    )

    def sent() -> RoutedRequest:
        body = json.dumps({"model": "llama", **prompt}).encode()
        routed = epp.director.handle(
            request_id="r-1", headers={":path": "/v1/completions"}, body=body, received_at=0.0
        )
        assert isinstance(routed, RoutedRequest)
        assert routed.request.prompt
        routed.body_sent()
        return routed

    gc.collect()
    gc.freeze()  # what there is already is not looked at
    first = sent()  # what is kept for all requests is there after it
    gc.collect()
    tracemalloc.start()
    try:
        second = sent()
        gc.collect()
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert epp.in_flight == 2
    assert kept_bytes < 16 * KIB
    for routed in (first, second):
        assert (routed.request.prompt, routed.request.tools) == (b"", b"")
