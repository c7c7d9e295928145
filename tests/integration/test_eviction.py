"""Requests in flight are evicted for others, as clients of a real Envoy see it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from config.graphs import HEAD
from structlog.testing import capture_logs

from epp.app import Transport
from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from tools.harness.gateway import NO_FAULTS, Gateway, in_each_mode, running, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

OBJECTIVE = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1, poolRef: {name: default}}
"""
BATCH = {"x-llm-d-inference-objective": "batch"}
LONG = {"model": "tiny", "prompt": "Hello", "max_tokens": 8000}
"""Minutes of a response that begins at its end, unless it is streamed."""


def config(*, evicts: bool) -> str:
    """Two requests fill the pool."""
    return HEAD + (
        "featureGates: [flowControl]\n"
        "plugins:\n- {type: concurrency-detector, parameters: {maxConcurrency: 2}}\n"
        "schedulingProfiles: [{name: default, plugins: [{pluginRef: max-score-picker}]}]\n"
        "flowControl:\n  saturationDetector: {pluginRef: concurrency-detector}\n"
        f"  enableEviction: {str(evicts).lower()}\n"
    )


@asynccontextmanager
async def two_places(
    tmp_path: Path, mode: Mode, transport: Transport = "http2", *, evicts: bool = True
) -> AsyncIterator[Gateway]:
    """Run a gateway whose only model server takes two requests."""
    objects = tmp_path / "objects.yaml"
    await asyncio.to_thread(objects.write_text, OBJECTIVE)
    async with running(
        mode,
        transport=transport,
        fleet=FleetConfig(endpoints=1),
        config=config(evicts=evicts),
        objects=(objects,),
    ) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def full(
    mode: Mode, transport: Transport, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    async with two_places(tmp_path_factory.mktemp("eviction"), mode, transport) as gateway:
        yield gateway


def value(gateway: Gateway, name: str, **labels: str) -> float:
    """A figure of flow control."""
    full_name = f"llm_d_epp_flow_control_{name}"
    labels = {**labels, "inference_pool": "default"}
    return gateway.app.metrics.registry.get_sample_value(full_name, labels) or 0.0


async def fill(gateway: Gateway) -> list[asyncio.Task[httpx.Response]]:
    """Send two sheddable requests whose responses will not begin."""
    asking = []
    for number in (1, 2):
        url = f"{gateway.url}/v1/completions"
        request = gateway.client.post(url, json=LONG, headers=BATCH)
        asking.append(asyncio.create_task(request, name=f"sheddable-{number}"))
        await until(partial(_runs, gateway, number))
    return asking


def _runs(gateway: Gateway, count: int) -> bool:
    return running_there(gateway) == count


def running_there(gateway: Gateway) -> int:
    """How many requests the model server has."""
    (server,) = gateway.fleet.servers
    return server.engine.num_running


async def leave(gateway: Gateway, *asking: asyncio.Task[httpx.Response]) -> None:
    """Let clients go, and see that nothing is left of anybody."""
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await until(lambda: running_there(gateway) == 0)
    await until(lambda: gateway.open_streams() == 0)
    await gateway.settled()
    gateway.assert_untouched()
    assert await gateway.faults() == NO_FAULTS


@in_each_mode
async def test_the_newest_sheddable_request_makes_room(full: Gateway) -> None:
    confirmed = value(full, "revocations_total", outcome="confirmed")
    with capture_logs() as lines:
        first, second = await fill(full)
        critical = await full.completion()
        evicted = await second
    assert critical.status_code == 200
    assert evicted.status_code == 429
    assert evicted.headers["x-llm-d-request-dropped-reason"] == "evicted"
    assert evicted.headers["retry-after"] == "1"
    error = evicted.json()["error"]
    assert (error["message"], error["stage"]) == (
        "request evicted by flow control",
        "flow-control",
    )
    assert not first.done()
    assert value(full, "revocations_total", outcome="confirmed") == confirmed + 1
    finished = [line["outcome"] for line in lines if line["event"] == "request finished"]
    assert finished[0] == "evicted"
    assert "evicted" not in finished[1:]
    await until(lambda: running_there(full) == 1)
    await leave(full, first)


@in_each_mode
async def test_a_response_that_has_begun_is_left_alone(full: Gateway) -> None:
    before = value(full, "revocations_issued_total", priority="-1")
    url, body = f"{full.url}/v1/completions", {**LONG, "stream": True}
    first = full.client.stream("POST", url, json=body, headers=BATCH)
    second = full.client.stream("POST", url, json=body, headers=BATCH)
    async with second as stays:
        async with first as leaves:
            assert (leaves.status_code, stays.status_code) == (200, 200)
            critical = asyncio.create_task(full.completion())
            await until(lambda: full.app.pool.flow.waiting == 1)
            await sessions(full, 3)
            assert not critical.done()
        assert (await critical).status_code == 200
        assert await anext(stays.aiter_bytes())
    assert value(full, "revocations_issued_total", priority="-1") == before
    await leave(full)


async def sessions(gateway: Gateway, count: int) -> None:
    """Wait until so many more sessions have been open."""
    name = "llm_d_epp_flow_control_dispatch_cycle_duration_seconds_count"
    registry = gateway.app.metrics.registry
    until_then = (registry.get_sample_value(name) or 0.0) + count
    await until(lambda: (registry.get_sample_value(name) or 0.0) >= until_then)


async def test_nobody_is_evicted_while_it_is_off(tmp_path: Path) -> None:
    async with two_places(tmp_path, Mode.LEAN, evicts=False) as gateway:
        first, second = await fill(gateway)
        critical = asyncio.create_task(gateway.completion())
        await until(lambda: gateway.app.pool.flow.waiting == 1)
        await sessions(gateway, 3)
        assert not any(each.done() for each in (first, second, critical))
        assert value(gateway, "revocations_issued_total", priority="-1") == 0
        first.cancel()
        assert (await critical).status_code == 200
        await leave(gateway, first, second)
