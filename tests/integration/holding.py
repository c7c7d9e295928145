"""A gateway whose servers hold requests by predicted times that the test controls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from epp.lab.fleet import EngineConfig, FakeServer, FleetConfig
from epp_plugins.data_producers.predicted_time import PredictedTimeProducer
from tools.harness.gateway import Gateway, until

from .queueing import ask

PRODUCER = "predicted-time-producer"
CONSTANTS = {
    "trustSamples": 0,
    "distrustAbove": 1_000_000,
    "priorWeight": 1_000_000,
    "priorBaseSeconds": 100,
    "priorUnitSeconds": 1000,
    "slownessPseudoServices": 1_000_000,
    "modeDifference": 1_000_000,
}
"""Predictions that no measurement changes: 100 s, and a second for each token, one prompt after the
other. So an endpoint has room only while none of its requests waits for a first token."""
SAMPLE = Path(__file__).parents[2] / "deploy" / "config" / "predicted-time-holding.yaml"


def holding_config(state_file: Path | None = None, **constants: float) -> str:
    """Return the sample of holding with sure predictions.

    Args:
        state_file: Where the producer keeps its state; None for nowhere.
        constants: In place of those of `CONSTANTS`, or in addition.
    """
    inner = ", ".join(f"{name}: {value}" for name, value in (CONSTANTS | constants).items())
    kept = f", stateFile: {state_file}" if state_file else ""
    parameters = f"  parameters: {{constants: {{{inner}}}{kept}}}\n"
    entry = f"- type: {PRODUCER}\n"
    text = SAMPLE.read_text(encoding="utf-8")
    assert entry in text
    return text.replace(entry, entry + parameters)


def quick_fleet(servers: int) -> FleetConfig:
    """Return servers that answer at once."""
    return FleetConfig(endpoints=servers, engine=EngineConfig(time_scale=0.01))


@asynccontextmanager
async def hanging(
    gateway: Gateway, server: FakeServer, prompt: str = "Hello"
) -> AsyncIterator[asyncio.Task[object]]:
    """Have a server that never answers one request, until the end of the block; it answers others.

    Yields:
        The request. The block may end it; otherwise its client leaves at the end.
    """
    server.faults.hang_generation = True
    asking: asyncio.Task[object] = asyncio.create_task(_response(gateway, prompt))
    await until(lambda: server.counters.in_flight > 0)
    server.faults.hang_generation = False
    try:
        yield asking
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _response(gateway: Gateway, prompt: str) -> object:
    return await ask(gateway, prompt=prompt)


def producer(gateway: Gateway) -> PredictedTimeProducer:
    """Return the producer of the graph in use."""
    found = gateway.app.pool.graph.plugins[PRODUCER]
    assert isinstance(found, PredictedTimeProducer)
    return found


def assert_nothing_reserved(gateway: Gateway) -> None:
    """The model has neither requests in flight nor reservations of held ones."""
    for endpoint in producer(gateway).model.endpoints.values():
        assert not endpoint.requests
        assert not endpoint.pending
        assert endpoint.reserved_seconds == 0
