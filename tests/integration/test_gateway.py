"""The whole path: a real Envoy asks our EPP, a request reaches a fake vLLM and is answered."""

import asyncio
import json
from functools import cache

import pytest

from epp.app import Transport
from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from epp.lab.load import LoadPlan, run
from tools.harness.gateway import NO_FAULTS, ROOMY, Gateway, in_each_mode, running, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

on_our_transport = pytest.mark.parametrize("transport", ["http2"], indirect=True)
"""For what is above the transport."""


@in_each_mode
async def test_a_completion_comes_back_whole_and_streamed(gateway: Gateway) -> None:
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
    gateway.assert_untouched()
    assert await gateway.faults() == NO_FAULTS


@on_our_transport
async def test_a_loaded_server_gets_the_fewest_of_300_requests(
    mode: Mode, transport: Transport
) -> None:
    fleet = FleetConfig(endpoints=3, time_scale=0.05, busy={1: 50})
    async with running(mode, transport=transport, fleet=fleet) as gateway:
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
        gateway.assert_untouched()
        assert await gateway.faults() == NO_FAULTS


@in_each_mode
async def test_clients_that_leave_mid_stream_leave_nothing_behind(gateway: Gateway) -> None:
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
    gateway.assert_untouched()
    assert (await gateway.completion()).status_code == 200
    assert await gateway.faults() == NO_FAULTS


@pytest.mark.parametrize(
    "mode", [Mode.LEAN, Mode.ADAPTIVE], ids=lambda mode: mode.value, indirect=True
)
@on_our_transport
async def test_messages_do_not_grow_with_the_length_of_the_reply(gateway: Gateway) -> None:
    counts = []
    for tokens in (1, 100):
        before = await gateway.messages()
        response = await gateway.completion(stream=True, max_tokens=tokens)
        assert response.text.count("data: ") == tokens + 1
        await gateway.settled()
        counts.append(await gateway.messages() - before)
    assert counts[0] == counts[1]
    assert counts[0] <= 4


@pytest.mark.parametrize(
    ("body", "stage"),
    [
        pytest.param(b'{"model', "parsing", id="not-json"),
        pytest.param(b'{"prompt": "x"}', "parsing", id="no-model"),
        pytest.param(b'{"model": "tiny"}', "parsing", id="no-prompt"),
    ],
)
@in_each_mode
async def test_a_bad_body_is_answered_with_400_and_names_the_stage(
    gateway: Gateway, body: bytes, stage: str
) -> None:
    response = await gateway.client.post(f"{gateway.url}/v1/completions", content=body)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error["stage"] == stage
    assert error["request_id"]
    assert (await gateway.completion()).status_code == 200


@in_each_mode
async def test_500_requests_and_200_clients_that_leave_cost_no_connection(
    gateway: Gateway,
) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")

    async def leave(nth: int, may_leave: asyncio.Event) -> None:
        """Send a request, or the first half of one, and close the connection with the others.

        One in ten is a whole request: its response keeps every part busy.
        """
        body = b'{"model": "tiny", "prompt": "x", "max_tokens": 5000, "stream": true}'
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + (body[:30] if nth % 10 else body))
        await may_leave.wait()
        writer.transport.abort()

    plan = LoadPlan(
        url=gateway.url,
        model="tiny",
        concurrency=64,
        requests=500,
        prompt_chars=500,
        max_tokens=1,
        stream=False,
    )
    assert (await gateway.completion()).status_code == 200
    may_leave = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for nth in range(200):
            tasks.create_task(leave(nth, may_leave))
        # On a busy machine, some of the 20 whole ones are answered before the last of all has come.
        await until(lambda: gateway.open_streams() >= 180)
        load = tasks.create_task(run(plan))
        may_leave.set()
    assert load.result().errors == {}
    assert load.result().succeeded == 500
    await gateway.settled()
    gateway.assert_untouched()
    assert await gateway.connections() == {"total": 1, "destroy": 0, "close_notify": 0}
    assert await gateway.faults() == NO_FAULTS


@on_our_transport
async def test_an_endpoint_that_refuses_costs_its_own_requests_only(
    mode: Mode, transport: Transport
) -> None:
    async with running(mode, transport=transport) as gateway:
        await gateway.fleet.servers[0].refuse()
        responses = await asyncio.gather(*(gateway.completion() for _ in range(12)))
        # Envoy tries the picked endpoint again, then answers 503 in its place.
        served = [response for response in responses if response.status_code == 200]
        assert {response.status_code for response in responses} <= {200, 503}
        assert {response.headers["x-served-by"] for response in served} <= {
            "endpoint-1",
            "endpoint-2",
        }
        assert len(served) >= 6
        await gateway.settled()
        gateway.assert_untouched()
        assert await gateway.faults() == NO_FAULTS


async def test_an_endpoint_that_hangs_keeps_its_place_until_the_client_leaves(
    transport: Transport,
) -> None:
    async with running(
        Mode.LEAN, transport=transport, fleet=FleetConfig(endpoints=1, time_scale=0.05)
    ) as gateway:
        gateway.fleet.servers[0].faults.hang_generation = True
        asking = asyncio.create_task(gateway.completion())
        await until(lambda: gateway.in_flight() == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await gateway.settled()
        gateway.assert_untouched()
        gateway.fleet.servers[0].faults.hang_generation = False
        assert (await gateway.completion()).status_code == 200


@on_our_transport
async def test_garbled_metrics_keep_the_last_values(transport: Transport) -> None:
    fleet = FleetConfig(endpoints=2, time_scale=0.05, busy={0: 7})
    async with running(Mode.LEAN, transport=transport, fleet=fleet) as gateway:
        gateway.fleet.servers[0].faults.garbled_metrics = True
        scrapes = gateway.fleet.servers[0].counters.scrapes
        await until(lambda: gateway.fleet.servers[0].counters.scrapes >= scrapes + 3)
        assert gateway.app.pool.store.snapshot[0].metrics.waiting_requests == 7
        assert (await gateway.completion()).status_code == 200
        page = await gateway.client.get(f"http://127.0.0.1:{gateway.ports.metrics}/metrics")
        labels = 'extractor_type="core-metrics-extractor",source_type="metrics-data-source"'
        assert f"llm_d_epp_datalayer_extract_errors_total{{{labels}}}" in page.text


@on_our_transport
async def test_an_empty_fleet_is_a_503_with_its_reason(
    transport: Transport,
) -> None:
    async with running(Mode.LEAN, transport=transport) as gateway:
        gateway.app.pool.store.replace_endpoints("--endpoint", [])
        response = await gateway.completion()
        assert response.status_code == 503
        assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        assert response.json()["error"]["stage"] == "candidates"


@on_our_transport
async def test_a_burst_of_60_distinct_prompts_spreads_evenly_over_6(
    mode: Mode, transport: Transport
) -> None:
    # No scrape and no end of a request falls into the burst: only reservations can spread it.
    fleet = FleetConfig(endpoints=6)
    async with running(mode, transport=transport, fleet=fleet, refresh_seconds=3600.0) as gateway:
        servers = gateway.fleet.servers
        for server in servers:
            server.faults.hang_generation = True
        prompts = [f"{n} {'x' * n} some prompt of its own" for n in range(60)]
        asking = [asyncio.create_task(gateway.completion(prompt=prompt)) for prompt in prompts]
        await until(lambda: sum(server.counters.in_flight for server in servers) == 60)
        counts = sorted(server.counters.in_flight for server in servers)
        assert counts[0] >= 9
        assert counts[-1] <= 11
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await gateway.settled()
        gateway.assert_untouched()


async def test_stopping_the_epp_leaves_a_response_under_way_whole(
    transport: Transport,
) -> None:
    fleet = FleetConfig(endpoints=2, time_scale=0.3)
    async with running(Mode.LEAN, transport=transport, fleet=fleet) as gateway:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 400, "stream": True}
        async with gateway.client.stream(
            "POST", f"{gateway.url}/v1/completions", json=body
        ) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            assert json.loads(first.removeprefix("data: "))["choices"]
            await gateway.app.service.drain(0.01)
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) == 400
        assert gateway.in_flight() == 0


@cache
def prompt_of(chars: int) -> str:
    return "".join(f"{n:08d}" for n in range(chars // 8))


async def assert_prompt_arrives(gateway: Gateway, chars: int) -> None:
    response = await gateway.completion(prompt=prompt_of(chars))
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] == chars // 4


@in_each_mode
async def test_long_prompts_arrive_untouched(mode: Mode, transport: Transport) -> None:
    async with running(mode, transport=transport, fleet=ROOMY) as gateway:
        for chars in (400_000, 5_000_000):
            await assert_prompt_arrives(gateway, chars)
        await asyncio.gather(*(assert_prompt_arrives(gateway, 400_000) for _ in range(4)))
        await gateway.settled()
        gateway.assert_untouched()
        assert await gateway.faults() == NO_FAULTS


async def test_envoy_speaks_tls_with_the_endpoint_picker(transport: Transport) -> None:
    async with running(Mode.FULL_DUPLEX, transport=transport, tls=True, fleet=ROOMY) as gateway:
        streamed = await gateway.completion(stream=True, max_tokens=100)
        assert streamed.text.endswith("data: [DONE]\n\n")
        for chars in (400_000, 3_000_000):
            await assert_prompt_arrives(gateway, chars)
        responses = await asyncio.gather(*(gateway.completion() for _ in range(50)))
        assert {response.status_code for response in responses} == {200}
        await gateway.settled()
        gateway.assert_untouched()
        assert await gateway.faults() == NO_FAULTS
        stats = await gateway.envoy.stats("cluster.epp.ssl.")
        assert stats["cluster.epp.ssl.handshake"] == 1
        assert stats["cluster.epp.ssl.connection_error"] == 0
