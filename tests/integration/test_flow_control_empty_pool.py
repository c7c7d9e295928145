"""Requests for an empty pool wait until it has a server, or until their time limit."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tools.harness.gateway import Gateway, running, until

from .queueing import CONFIG, ONE_SERVER, ask, reason, waiting

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]


class Pool:
    """The endpoints file of a gateway; its server can be taken out of it and put back."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._path = gateway.app.settings.endpoints_file or Path()
        self._entries: dict[str, Any] = json.loads(self._path.read_text())

    async def empty(self) -> None:
        await self._write({"endpoints": []})
        await until(lambda: not self._gateway.app.pool.store.snapshot)

    async def refill(self) -> None:
        await self._write(self._entries)

    async def _write(self, entries: dict[str, Any]) -> None:
        await asyncio.to_thread(self._path.write_text, json.dumps(entries))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    config = CONFIG + "  noEndpointRequestTTL: 200ms\n"
    async with running(fleet=ONE_SERVER, config=config, labels={}) as made:
        yield made


async def test_a_request_is_held_for_a_while_then_asked_to_come_again(gateway: Gateway) -> None:
    pool = await asyncio.to_thread(Pool, gateway)
    await pool.empty()
    response = await ask(gateway)
    await pool.refill()
    await until(lambda: len(gateway.app.pool.store.snapshot) == 1)
    assert reason(response) == (503, "rejected-no-endpoints")
    assert response.headers["retry-after"] == "1"
    waited = re.search(r"waited for ([\d.]+) s", response.text)
    assert waited is not None, response.text
    assert float(waited[1]) >= 0.2  # more on a busy machine
    assert "the pool has no endpoint" in response.text


async def test_a_request_is_served_when_a_server_comes_in_time(gateway: Gateway) -> None:
    pool = await asyncio.to_thread(Pool, gateway)
    await pool.empty()
    patient = ask(gateway, {"x-llm-d-request-ttl-ms": "10000"})
    await waiting(gateway, 1)
    await pool.refill()
    assert (await patient).status_code == 200
    await gateway.settled()
    gateway.assert_untouched()
