"""Tokens from a renderer, over the wire: gRPC client, real EPP, a fake renderer beside it."""

import time
from pathlib import Path

import pytest

from epp.lab.fleet import Fleet, FleetConfig

from .scraped import Server
from .test_decisions import HEAD, LONG, running

GUIDE = HEAD + (
    """\
plugins:
- type: token-producer
  parameters:
    modelName: tiny
    vllm: {url: "http://ADDRESS", timeout: 2s}
- {type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 64}}
- {type: prefix-cache-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]
"""
)
SERVERS = ("a", "b", "c", "d")


@pytest.mark.parametrize(("is_up", "affine"), [(True, True), (False, False)], ids=["up", "dead"])
async def test_requests_follow_the_engines_tokens_or_go_without(
    tmp_path: Path, *, is_up: bool, affine: bool
) -> None:
    async with Fleet(FleetConfig(endpoints=1, time_scale=0.01)) as fleet:
        renderer = fleet.servers[0]
        config = GUIDE.replace("ADDRESS", renderer.address)
        if not is_up:
            await renderer.refuse()
        async with running(tmp_path, config, {name: Server() for name in SERVERS}) as epp:
            began = time.monotonic()
            decisions = [await epp.post(LONG) for _ in range(24)]
            seconds = time.monotonic() - began
            page = epp.app.metrics.registry
            asked = page.get_sample_value(
                "llm_d_epp_token_render_requests_total",
                {
                    "outcome": "ok" if is_up else "connect",
                    "plugin_type": "token-producer",
                    "plugin_name": "token-producer",
                },
            )
            failures = page.get_sample_value(
                "llm_d_epp_plugin_disabled", {"plugin_type": "token-producer"}
            )
    assert {each.status for each in decisions} == {0}
    # 24 requests to one of four at random: once in 4**23 trials.
    assert (len({each.server for each in decisions}) == 1) == affine
    assert renderer.counters.rendered == (24 if is_up else 0)
    # It is down after 5 failures, and then asked once a second.
    most = 24 if is_up else 5 + seconds
    assert asked is not None
    assert (24 if is_up else 5) <= asked <= most
    assert not failures
