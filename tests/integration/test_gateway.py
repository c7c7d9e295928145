"""The whole path: a real Envoy asks our EPP, a request reaches a fake vLLM, the answer returns."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from epp.lab.envoy import Mode
from epp.lab.fleet import EngineConfig, FleetConfig
from epp.lab.load import LoadPlan, run

from .gateway import MODES, Gateway, running, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

NO_FAULTS = {"spurious_msgs_received": 0, "streams_failed": 0, "rejected_header_mutations": 0}

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


@every_mode
async def test_a_completion_comes_back_whole_and_streamed(mode: Mode) -> None:
    async with running(mode) as gateway:
        whole = await gateway.completion()
        assert whole.status_code == 200
        assert whole.json()["usage"]["completion_tokens"] == 4
        streamed = await gateway.completion(stream=True)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert "x-went-into-resp-headers" not in streamed.headers
        models = await gateway.client.get(f"{gateway.url}/v1/models")
        assert models.json()["data"][0]["id"] == "tiny"
        await gateway.settled()
        assert gateway.app.director.in_flight == 0
        assert gateway.in_flight() == 0
        assert await gateway.faults() == NO_FAULTS


@every_mode
async def test_a_loaded_server_gets_the_fewest_of_300_requests(mode: Mode) -> None:
    fleet = FleetConfig(endpoints=3, time_scale=0.05, busy={1: 50})
    async with running(mode, fleet=fleet) as gateway:
        report = await run(
            LoadPlan(
                url=gateway.url,
                model="tiny",
                concurrency=16,
                requests=300,
                prompt_chars=500,
                max_tokens=8,
            )
        )
        assert report.errors == {}
        assert report.succeeded == 300
        shares = report.endpoints
        assert shares.get("endpoint-1", 0) < min(shares["endpoint-0"], shares["endpoint-2"])
        await gateway.settled()
        assert gateway.in_flight() == 0
        assert await gateway.faults() == NO_FAULTS


@every_mode
async def test_clients_that_leave_mid_stream_leave_nothing_behind(mode: Mode) -> None:
    async with running(mode) as gateway:
        report = await run(
            LoadPlan(
                url=gateway.url,
                model="tiny",
                concurrency=16,
                requests=120,
                max_tokens=40,
                abort_share=0.5,
                seed=3,
            )
        )
        assert report.left_early > 20
        assert report.errors == {}
        await gateway.settled()
        assert gateway.app.director.in_flight == 0
        assert gateway.in_flight() == 0
        assert (await gateway.completion()).status_code == 200
        assert await gateway.faults() == NO_FAULTS


@pytest.mark.parametrize("mode", [Mode.LEAN, Mode.ADAPTIVE], ids=lambda mode: mode.value)
async def test_messages_do_not_grow_with_the_length_of_the_answer(mode: Mode) -> None:
    async with running(mode) as gateway:
        counts = []
        for tokens in (1, 100):
            before = await gateway.messages()
            answer = await gateway.completion(stream=True, max_tokens=tokens)
            assert answer.text.count("data: ") == tokens + 1
            await gateway.settled()
            counts.append(await gateway.messages() - before)
        assert counts[0] == counts[1]
        assert counts[0] <= 4


@every_mode
async def test_a_large_body_arrives_untouched(mode: Mode) -> None:
    engine = EngineConfig(max_model_len=1_000_000, num_blocks=70_000, time_scale=0.001)
    async with running(mode, fleet=FleetConfig(endpoints=2, engine=engine)) as gateway:
        prompt = "".join(f"{n:08d}" for n in range(375_000))
        answer = await gateway.completion(prompt=prompt)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] == len(prompt) // 4
        assert await gateway.faults() == NO_FAULTS


@every_mode
@pytest.mark.parametrize(
    ("body", "stage"),
    [
        pytest.param(b'{"model', "parsing", id="not-json"),
        pytest.param(b'{"prompt": "x"}', "parsing", id="no-model"),
        pytest.param(b'{"model": "tiny"}', "parsing", id="no-prompt"),
    ],
)
async def test_a_bad_body_is_answered_with_400_and_names_the_stage(
    gateways: dict[Mode, Gateway], mode: Mode, body: bytes, stage: str
) -> None:
    gateway = gateways[mode]
    answer = await gateway.client.post(f"{gateway.url}/v1/completions", content=body)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["stage"] == stage
    assert error["request_id"]
    assert (await gateway.completion()).status_code == 200


@pytest.fixture
async def gateways(mode: Mode) -> AsyncIterator[dict[Mode, Gateway]]:
    async with running(mode) as gateway:
        yield {mode: gateway}


@every_mode
async def test_an_endpoint_that_refuses_costs_its_own_requests_only(mode: Mode) -> None:
    async with running(mode) as gateway:
        await gateway.fleet.servers[0].refuse()
        answers = await asyncio.gather(*(gateway.completion() for _ in range(12)))
        # Envoy tries the picked endpoint again, then answers 503 in its place.
        served = [answer for answer in answers if answer.status_code == 200]
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert {answer.headers["x-served-by"] for answer in served} <= {"endpoint-1", "endpoint-2"}
        assert len(served) >= 6
        await gateway.settled()
        assert gateway.in_flight() == 0
        assert await gateway.faults() == NO_FAULTS


async def test_an_endpoint_that_hangs_keeps_its_place_until_the_client_leaves() -> None:
    async with running(Mode.LEAN, fleet=FleetConfig(endpoints=1, time_scale=0.05)) as gateway:
        gateway.fleet.servers[0].faults.hang = True
        asking = asyncio.create_task(gateway.completion())
        await until(lambda: gateway.in_flight() == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await gateway.settled()
        assert gateway.in_flight() == 0
        gateway.fleet.servers[0].faults.hang = False
        assert (await gateway.completion()).status_code == 200


async def test_garbled_metrics_keep_the_last_values() -> None:
    fleet = FleetConfig(endpoints=2, time_scale=0.05, busy={0: 7})
    async with running(Mode.LEAN, fleet=fleet) as gateway:
        gateway.fleet.servers[0].faults.garbled_metrics = True
        scrapes = gateway.fleet.servers[0].counters.scrapes
        await until(lambda: gateway.fleet.servers[0].counters.scrapes >= scrapes + 3)
        assert gateway.app.store.snapshot[0].metrics.waiting_requests == 7
        assert (await gateway.completion()).status_code == 200
        page = await gateway.client.get(f"http://127.0.0.1:{gateway.ports.metrics}/metrics")
        assert (
            'llm_d_epp_datalayer_poll_errors_total{source_type="metrics-data-source"}' in page.text
        )


async def test_an_empty_fleet_is_a_503_with_its_reason() -> None:
    async with running(Mode.LEAN) as gateway:
        gateway.app.store.replace_endpoints("--endpoint", [])
        answer = await gateway.completion()
        assert answer.status_code == 503
        assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        assert answer.json()["error"]["stage"] == "candidates"


@every_mode
async def test_a_burst_of_60_distinct_prompts_spreads_evenly_over_6(mode: Mode) -> None:
    # No scrape and no end of a request falls into the burst: only reservations can spread it.
    fleet = FleetConfig(endpoints=6, time_scale=3.0)
    async with running(mode, fleet=fleet, refresh_seconds=60.0) as gateway:
        prompts = [f"{n} {'x' * n} some prompt of its own" for n in range(60)]
        answers = await asyncio.gather(
            *(gateway.completion(prompt=prompt, max_tokens=2) for prompt in prompts)
        )
        served: dict[str, int] = {}
        for answer in answers:
            assert answer.status_code == 200
            name = answer.headers["x-served-by"]
            served[name] = served.get(name, 0) + 1
        assert sorted(served.values())[0] >= 9
        assert sorted(served.values())[-1] <= 11
        assert len(served) == 6


async def test_stopping_the_epp_leaves_an_answer_under_way_whole() -> None:
    async with running(Mode.LEAN, fleet=FleetConfig(endpoints=2)) as gateway:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 400, "stream": True}
        async with gateway.client.stream(
            "POST", f"{gateway.url}/v1/completions", json=body
        ) as answer:
            lines = answer.aiter_lines()
            first = await anext(lines)
            assert json.loads(first.removeprefix("data: "))["choices"]
            await gateway.app.service.drain(0.01)
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) == 400
        assert gateway.in_flight() == 0
