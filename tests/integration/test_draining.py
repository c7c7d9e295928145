"""An endpoint with the drain label gets no new requests, and finishes those it has."""

import asyncio
import json
from pathlib import Path

import pytest

from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from tools.harness.gateway import Gateway, running, until

pytestmark = pytest.mark.integration


def label(gateway: Gateway, draining: set[int]) -> None:
    """Write the endpoints file anew."""
    path = gateway.app.settings.endpoints_file or Path()
    document = json.loads(path.read_text())
    for number, entry in enumerate(document["endpoints"]):
        entry["labels"] = {"llm-d.ai/drain": "true"} if number in draining else {}
    path.write_text(json.dumps(document))


async def served(gateway: Gateway, requests: int) -> set[tuple[int, str]]:
    answers = await asyncio.gather(*(gateway.completion() for _ in range(requests)))
    return {(answer.status_code, answer.headers.get("x-served-by", "")) for answer in answers}


@pytest.mark.parametrize("mode", Mode)
async def test_a_draining_server_finishes_what_it_has_and_gets_nothing_new(mode: Mode) -> None:
    fleet = FleetConfig(endpoints=2)
    async with running(mode, fleet=fleet, labels={}) as gateway:
        store = gateway.app.store
        long = [
            asyncio.create_task(gateway.completion(prompt=f"{number} differs", max_tokens=200))
            for number in range(16)
        ]
        await until(lambda: all(each.load.in_flight > 0 for each in store.snapshot))
        label(gateway, {0})
        await until(lambda: len(store.serving) == 1)
        assert store.snapshot[0].load.in_flight > 0
        assert await served(gateway, 8) == {(200, "endpoint-1")}
        answers = await asyncio.gather(*long)
        assert {answer.status_code for answer in answers} == {200}
        assert "endpoint-0" in {answer.headers["x-served-by"] for answer in answers}
        label(gateway, {0, 1})
        await until(lambda: not store.serving)
        refused = await gateway.completion()
        assert refused.status_code == 503
        assert "are all endpoints draining?" in refused.text
        label(gateway, set())
        await until(lambda: len(store.serving) == 2)
        assert {status for status, _ in await served(gateway, 10)} == {200}
        metrics = (
            await gateway.client.get(f"http://127.0.0.1:{gateway.ports.metrics}/metrics")
        ).text
        assert 'llm_d_epp_endpoint_draining{model_server_endpoint="endpoint-0"' in metrics
