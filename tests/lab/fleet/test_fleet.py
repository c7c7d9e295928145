"""Ports, configuration and determinism of a fleet, and the driver on a virtual clock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import httpx
import pytest

from epp.lab.fleet import (
    Engine,
    EngineConfig,
    Fleet,
    FleetConfig,
    FleetConfigError,
    GenerationRequest,
    PortTakenError,
)
from epp.lab.fleet.driver import EngineDriver
from tools.harness.ports import free_ports

MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]


async def test_a_fleet_runs_until_it_is_stopped() -> None:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        Fleet(FleetConfig(endpoints=3)).run(stop, ready=ready.set_result), name="fleet"
    )
    fleet: Fleet = await ready
    async with httpx.AsyncClient(trust_env=False) as client:
        names = [
            (await client.get(f"http://{address}/health")).headers["x-served-by"]
            for address in fleet.addresses
        ]
    assert names == ["endpoint-0", "endpoint-1", "endpoint-2"]
    stop.set()
    await task
    assert not any(server.listening for server in fleet.servers)


async def test_given_ports_are_bound() -> None:
    (port,) = free_ports(1)
    async with Fleet(FleetConfig(endpoints=1, ports=(port,))) as fleet:
        assert fleet.ports == (port,)
        assert fleet.addresses == (f"127.0.0.1:{port}",)


async def test_a_taken_port_is_named_and_nothing_keeps_running() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]
        fleet = Fleet(FleetConfig(endpoints=2, ports=(0, port)))
        with pytest.raises(PortTakenError, match=f"endpoint-1: port {port} on 127.0.0.1") as caught:
            await fleet.start()
    assert caught.value.port == port
    assert not any(server.listening for server in fleet.servers)


async def test_all_servers_give_the_same_response_to_a_prompt(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2, speed={1: 0.3})
    texts = {
        (await make_client(fleet, index).post("/v1/completions", json={"prompt": "a"})).json()[
            "choices"
        ][0]["text"]
        for index in (0, 1)
    }
    assert len(texts) == 1


def test_overrides_reach_the_engines() -> None:
    config = FleetConfig(
        endpoints=2,
        first_port=9000,
        speed={1: 0.5},
        busy={0: 7},
        num_blocks={1: 600},
        time_scale=0.1,
        engine=EngineConfig(time_scale=2.0),
        seed=5,
    )
    first, second = config.engine_of(0), config.engine_of(1)
    assert (first.phantom_waiting, second.phantom_waiting) == (7, 0)
    assert (first.speed, second.speed) == (1.0, 0.5)
    assert (first.num_blocks, second.num_blocks) == (2000, 600)
    assert (first.time_scale, first.seed) == (0.2, 5)
    assert (config.port_of(0), config.port_of(1)) == (9000, 9001)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"endpoints": 0}, "endpoints must be at least 1"),
        ({"ports": (1,)}, "1 ports for 4 endpoints"),
        ({"first_port": 65_534}, "port of endpoint-2 is out of range: 65536"),
        ({"busy": {4: 1}}, "busy has index 4, but there are 4 endpoints"),
        ({"busy": {0: -1}}, "phantom_waiting must not be negative"),
        ({"speed": {0: 0.0}}, "speed must be above 0"),
        ({"num_blocks": {0: 10}}, "does not fit the KV cache"),
        ({"time_scale": 0.0}, "time_scale must be above 0"),
        ({"model": ""}, "model must not be empty"),
    ],
)
def test_an_impossible_fleet_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(FleetConfigError, match=message):
        FleetConfig(**fields)  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 4}, "is below max_num_seqs"),
        ({"eos_probability": 1.0}, r"must be in \[0, 1\)"),
        ({"adapters": ("a", "a")}, "adapters has duplicate names"),
    ],
)
def test_an_impossible_engine_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(FleetConfigError, match=message):
        EngineConfig(**fields)  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.looptime
async def test_the_driver_ends_steps_on_the_loops_clock_and_rests_when_idle() -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(EngineConfig(step_seconds=2.0, decode_seconds_per_sequence=0.0))
    driver = EngineDriver(engine, loop)
    ended = asyncio.Event()
    request = GenerationRequest(id="r", prompt=b"abcd" * 8000, max_tokens=3)
    start = loop.time()
    driver.submit(request, on_token=None, on_end=lambda _: ended.set())
    await ended.wait()
    # 4 chunks of at most 2048 tokens at 8000 tokens/s, then 2 decodes: 6 steps
    assert loop.time() - start == pytest.approx(6 * 2 + 1, abs=0.01)
    assert engine.step_ends_at is None
    assert driver.worst_lag_seconds < 0.01
    victim = driver.submit(request, on_token=None, on_end=lambda _: None)
    driver.abort(victim)
    driver.stop()
    assert engine.kv.in_use == 0
