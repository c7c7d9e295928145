"""Waiting requests while the configuration changes, and when the process ends."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from epp.lab.envoy import Mode
from tools.harness.gateway import MODES, running, until

from .queueing import (
    CONFIG,
    FLOW_GATE,
    LONG_RESPONSE,
    ONE_SERVER,
    PATIENT,
    ask,
    occupied,
    queued,
    reason,
)

pytestmark = pytest.mark.integration
in_each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


@in_each_mode
async def test_a_stop_serves_what_gets_a_place_in_time(mode: Mode) -> None:
    async with running(mode, fleet=ONE_SERVER, config=CONFIG, serve=PATIENT) as gateway:
        async with occupied(gateway):
            tasks = await queued(gateway, 4)
            gateway.stop.set()
            await until(lambda: not gateway.app.is_ready)
        responses = await asyncio.gather(*tasks)
        assert [response.status_code for response in responses] == [200] * 4


@in_each_mode
async def test_a_stop_answers_everybody_who_gets_no_place(mode: Mode) -> None:
    async with running(mode, fleet=ONE_SERVER, config=CONFIG) as gateway:
        async with gateway.client.stream(
            "POST", f"{gateway.url}/v1/completions", json=LONG_RESPONSE
        ) as response:
            chunks = response.aiter_bytes()
            await anext(chunks)
            tasks = await queued(gateway, 4)
            gateway.stop.set()
            reasons = Counter(reason(each) for each in await asyncio.gather(*tasks))
            assert reasons == {(503, "rejected-shutting-down"): 4}
            assert await anext(chunks)  # it goes on without the endpoint picker
        assert gateway.app.pool.flow.waiting == 0


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(CONFIG.replace("maxRequests: 4", "maxRequests: 1"), id="a shorter queue"),
        pytest.param(
            CONFIG.replace("plugins:\n", "plugins:\n- {type: edf-ordering-policy}\n", 1)
            + "  defaultPriorityBand: {orderingPolicyRef: edf-ordering-policy}\n",
            id="another order",
        ),
        pytest.param(CONFIG.replace(FLOW_GATE, ""), id="without flow control"),
    ],
)
async def test_a_reload_loses_nobody_who_waits(tmp_path: Path, after: str) -> None:
    path = tmp_path / "config.yaml"
    await asyncio.to_thread(path.write_text, CONFIG)
    async with running(fleet=ONE_SERVER, config=path) as gateway:
        async with occupied(gateway):
            tasks = await queued(gateway, 4)
            before = gateway.app.pool.graph
            await asyncio.to_thread(path.write_text, after)
            await until(lambda: gateway.app.pool.graph is not before)
        responses = await asyncio.gather(*tasks)
        assert [response.status_code for response in responses] == [200] * 4
        await gateway.settled()
        gateway.assert_untouched()


async def test_a_reload_that_makes_room_lets_everybody_go(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    await asyncio.to_thread(path.write_text, CONFIG)
    async with running(fleet=ONE_SERVER, config=path) as gateway, occupied(gateway):
        tasks = await queued(gateway, 4)
        more_room = CONFIG.replace("maxConcurrency: 1", "maxConcurrency: 9")
        await asyncio.to_thread(path.write_text, more_room)
        responses = await asyncio.gather(*tasks)
        assert [response.status_code for response in responses] == [200] * 4


async def test_without_the_feature_gate_nobody_waits_and_only_sheddable_requests_are_refused(
    tmp_path: Path,
) -> None:
    objects = tmp_path / "batch.yaml"
    await asyncio.to_thread(
        objects.write_text,
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}\n"
        "spec: {priority: -1}\n",
    )
    legacy = CONFIG.replace(FLOW_GATE, "")
    async with running(fleet=ONE_SERVER, config=legacy, objects=(objects,)) as gateway:
        async with occupied(gateway):
            plain, batch = await asyncio.gather(
                ask(gateway), ask(gateway, {"x-llm-d-inference-objective": "batch"})
            )
        assert plain.status_code == 200
        assert reason(batch) == (429, "rejected-saturated")
