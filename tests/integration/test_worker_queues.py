"""Requests wait in the queues of one of two real workers, whichever worker gets them from Envoy."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
import pytest_asyncio

from epp.lab.envoy import Mode
from tools.faults.processes import Setting, Site, site

from .queueing import CONFIG, LONG_RESPONSE, ONE_SERVER, reason

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),  # three processes start, each in seconds on a busy machine
]

OBJECTIVES = Path("deploy/objects")
TENANT = "x-llm-d-inference-fairness-id"
CRITICAL = {"x-llm-d-inference-objective": "critical"}
SIZE = "llm_d_epp_flow_control_queue_size"
OUTCOMES = "llm_d_epp_flow_control_requests_total"
NONE = MappingProxyType[str, str]({})
FAIR = (
    CONFIG.replace("plugins:\n", "plugins:\n- {type: round-robin-fairness-policy}\n", 1)
    + "  defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}\n"
)
"""One request at a time; four may wait, and tenants take turns."""


def prepared(folder: Path) -> Sequence[str]:
    """Write the files of the endpoint picker; return the options that name them."""
    (folder / "config.yaml").write_text(FAIR)
    return (
        *("--config-file", str(folder / "config.yaml")),
        *("--objects", str(OBJECTIVES)),
        # So that only the workers can tell each other what has ended.
        *("--refresh-metrics-interval", "1h"),
    )


class Queues:
    """The gateway, and clients that wait."""

    def __init__(self, running: Site, client: httpx.AsyncClient) -> None:
        self.site = running
        self.client = client
        self.served: list[str] = []
        """Names of requests in the order of their responses."""

    def ask(
        self, name: str = "", headers: Mapping[str, str] = NONE, **body: Any
    ) -> asyncio.Task[httpx.Response]:
        """Send a request whose response is short."""

        async def send() -> httpx.Response:
            document = {"model": "tiny", "prompt": "Hello", "max_tokens": 1, **body}
            url = f"{self.site.url}/v1/completions"
            response = await self.client.post(url, json=document, headers=dict(headers))
            self.served.append(name)
            return response

        return asyncio.create_task(send())

    async def waiting(self, number: int) -> None:
        """Wait until exactly so many requests wait."""
        await self.site.picker.until(SIZE, number)

    async def in_turn(self, *names: str, headers: Mapping[str, str] = NONE) -> list[Any]:
        """Have requests come that wait, in their order."""
        before = await self.site.picker.metric(SIZE)
        tasks = []
        for number, name in enumerate(names, 1):
            tasks.append(self.ask(name, headers))
            await self.waiting(int(before) + number)
        return tasks

    @asynccontextmanager
    async def occupied(self) -> AsyncIterator[None]:
        """Take the only place in the pool until the end of the block."""
        url = f"{self.site.url}/v1/completions"
        async with self.client.stream("POST", url, json=LONG_RESPONSE) as response:
            assert response.status_code == 200
            yield

    async def dispatched(self) -> float:
        samples = await self.site.picker.samples(OUTCOMES)
        return sum(value for labels, value in samples.items() if '"Dispatched"' in labels)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Site]:
    async with site(Setting(Mode.LEAN, workers=2), ONE_SERVER, prepare=prepared) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def queues(running: Site) -> AsyncIterator[Queues]:
    """The gateway, in which nothing waits or is reserved afterwards."""
    async with httpx.AsyncClient(timeout=60.0, trust_env=False, verify=False) as client:
        yield Queues(running, client)
    await running.picker.until(SIZE, 0)
    await running.picker.until_idle()


async def test_requests_of_both_workers_wait_in_one_order(queues: Queues) -> None:
    before = await queues.dispatched()
    async with queues.occupied():
        tasks = await queues.in_turn("1", "2", "3", "4")
        page = (await queues.site.picker.page("/debug/session")).json()
        assert page["waiting"] == 4
        elsewhere = await queues.site.picker.page("/debug/session?worker=1")
        assert elsewhere.status_code == 404
    responses = await asyncio.gather(*tasks)
    assert [each.status_code for each in responses] == [200] * 4
    assert queues.served == ["1", "2", "3", "4"]
    assert await queues.dispatched() == before + 5


async def test_the_limit_is_of_both_workers_together(queues: Queues) -> None:
    async with queues.occupied():
        tasks = await queues.in_turn("1", "2", "3", "4")
        refused = [await queues.ask() for _ in range(2)]
        assert await queues.site.picker.metric(SIZE) == 4
    for response in refused:  # one at each worker
        assert reason(response) == (429, "rejected-saturated")
        assert "4 requests wait, which is the limit" in response.text
        assert "retry-after" in response.headers
    assert {each.status_code for each in await asyncio.gather(*tasks)} == {200}


async def test_tenants_take_turns_over_both_workers(queues: Queues) -> None:
    async with queues.occupied():
        flood = await queues.in_turn("a1", "a2", "a3", headers={TENANT: "alice"})
        single = await queues.in_turn("b1", headers={TENANT: "bob"})
    await asyncio.gather(*flood, *single)
    assert queues.served == ["a1", "b1", "a2", "a3"]


async def test_priorities_hold_over_both_workers(queues: Queues) -> None:
    async with queues.occupied():
        low = await queues.in_turn("low 1", "low 2")
        high = await queues.in_turn("high 1", "high 2", headers=CRITICAL)
    await asyncio.gather(*low, *high)
    assert queues.served == ["high 1", "high 2", "low 1", "low 2"]


async def test_a_ttl_ends_with_the_same_response_at_both_workers(queues: Queues) -> None:
    async with queues.occupied():
        late = [await queues.ask("", {"x-llm-d-request-ttl-ms": "50"}) for _ in range(2)]
    for response in late:
        assert reason(response) == (429, "rejected-ttl-expired")
        assert "saturation is 1.00" in response.text


async def test_clients_that_leave_are_taken_out_of_the_queue(queues: Queues) -> None:
    async with queues.occupied():
        tasks = await queues.in_turn("1", "2", "3", "4")
        for gone in tasks[1:3]:  # one at each worker
            gone.cancel()
        await queues.waiting(2)
    await asyncio.gather(tasks[0], tasks[3])
    assert queues.served == ["1", "4"]


async def test_a_worker_that_is_killed_takes_along_only_its_own(queues: Queues) -> None:
    picker = queues.site.picker
    pids = await asyncio.to_thread(picker.workers)
    async with queues.occupied():
        tasks = await queues.in_turn("1", "2", "3", "4")
        os.kill(pids[1], signal.SIGKILL)  # it only asks
        await picker.until("llm_d_epp_worker_restarts_total", 1)
        # Two were its own, and the long response perhaps: then one of the others went.
        async with asyncio.timeout(40):
            while await picker.metric(SIZE) > 2:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
    assert await statuses(tasks) == [200, 200, 500, 500]
    await picker.until("llm_d_epp_worker_ready", 2)
    await picker.until_idle()
    async with queues.occupied():
        tasks = await queues.in_turn("1", "2", "3", "4")
        os.kill(pids[0], signal.SIGKILL)  # it owns the queues
        await picker.until("llm_d_epp_worker_restarts_total", 2)
    assert await statuses(tasks) == [200, 200, 500, 500]


async def statuses(tasks: Sequence[asyncio.Task[httpx.Response]]) -> list[int]:
    """Return the statuses of the responses, in order of their numbers."""
    return sorted(each.status_code for each in await asyncio.gather(*tasks))
