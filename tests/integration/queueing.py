"""A gateway whose pool serves one request at a time; a test decides how long the others wait."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import httpx

from epp.lab.fleet import EngineConfig, FleetConfig
from tools.harness.gateway import Gateway, until

ONE_SERVER = FleetConfig(
    endpoints=1,
    engine=EngineConfig(
        max_model_len=400_000,
        num_blocks=30_000,
        max_num_batched_tokens=400_000,
        prefill_tokens_per_second=1e8,
    ),
)
"""Takes long prompts in no time, and as long for a response as servers do."""

DROP_REASON = "x-llm-d-request-dropped-reason"
FLOW_GATE = "featureGates: [flowControl]\n"
CONFIG = (
    "apiVersion: llm-d.ai/v1alpha1\n"
    "kind: EndpointPickerConfig\n"
    f"{FLOW_GATE}"
    "plugins:\n"
    "- {type: concurrency-detector, parameters: {maxConcurrency: 1}}\n"
    "- {type: queue-scorer}\n"
    "schedulingProfiles:\n"
    "- {name: default, plugins: [{pluginRef: queue-scorer}]}\n"
    "flowControl:\n"
    "  saturationDetector: {pluginRef: concurrency-detector}\n"
    "  maxRequests: 4\n"
)
PATIENT = {"drain_timeout_seconds": 60.0}
"""Settings for a stop that ends when all have been served, however slow the machine is."""
LONG_RESPONSE = {"model": "tiny", "prompt": "Hello", "max_tokens": 8000, "stream": True}
"""Takes more than a minute, unless its client leaves."""


@asynccontextmanager
async def occupied(
    gateway: Gateway, headers: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[None]:
    """Take a place in the pool until the end of the block."""
    before = gateway.in_flight()
    async with gateway.client.stream(
        "POST", f"{gateway.url}/v1/completions", json=LONG_RESPONSE, headers=dict(headers)
    ) as response:
        assert response.status_code == 200
        yield
    await until(lambda: gateway.in_flight() <= before)


def ask(
    gateway: Gateway, headers: Mapping[str, str] = MappingProxyType({}), **body: Any
) -> asyncio.Task[httpx.Response]:
    """Send a request whose response is short."""
    document = {"model": "tiny", "prompt": "Hello", "max_tokens": 1, **body}
    return asyncio.create_task(
        gateway.client.post(f"{gateway.url}/v1/completions", json=document, headers=dict(headers))
    )


async def waiting(gateway: Gateway, number: int) -> None:
    """Wait until exactly so many requests wait."""
    await until(lambda: gateway.app.pool.flow.waiting == number)


async def queued(gateway: Gateway, number: int) -> list[asyncio.Task[httpx.Response]]:
    """Have requests come that wait, in their order."""
    tasks = []
    for place in range(number):
        tasks.append(ask(gateway))
        await waiting(gateway, place + 1)
    return tasks


def reason(response: httpx.Response) -> tuple[int, str]:
    """Return the status of a response and why it was not served."""
    return response.status_code, response.headers.get(DROP_REASON, "")
