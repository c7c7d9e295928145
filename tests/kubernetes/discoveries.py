"""Runs a discovery in a test, and creates the pools and pods that it finds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from epp.data_layer import EndpointSpec, ObjectStore
from epp.kubernetes.discovery import SOURCE, KubernetesDiscovery
from epp.kubernetes.pools import POOLS
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.source import FORMER_POOL_GROUP, POOL_GROUP, PodSource, PoolRef

from .conftest import connect
from .fake_api import PODS, FakeApi, Request
from .fake_state import Json

POOL, FORMER_POOL = POOLS[POOL_GROUP][0], POOLS[FORMER_POOL_GROUP][0]
VLLM = {"app": "vllm"}
OF_POOL = PodSource("d", PoolRef("pool"))
OF_FORMER_POOL = PodSource("d", PoolRef("pool", FORMER_POOL_GROUP))


class Sink:
    """Records what is reported."""

    def __init__(self) -> None:
        self.reports: list[list[EndpointSpec]] = []
        self._news = asyncio.Event()

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        assert source == SOURCE
        self.reports.append(list(specs))
        self._news.set()

    @property
    def addresses(self) -> list[str] | None:
        """The addresses of the last report; None before the first."""
        return sorted(each.address for each in self.reports[-1]) if self.reports else None

    async def until(self, *addresses: str) -> None:
        """Wait for a report of these addresses."""
        await self.until_true(partial(_has, self, sorted(addresses)))

    async def until_true(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()


def _has(sink: Sink, addresses: list[str]) -> bool:
    return sink.addresses == addresses


@asynccontextmanager
async def discovering(
    api: FakeApi,
    folder: Path,
    source: PodSource = OF_POOL,
    policies: ObjectStore | None = None,
    **how: Any,
) -> AsyncIterator[tuple[KubernetesDiscovery, Sink]]:
    """Run a discovery, whose kubeconfig is in ``folder``."""
    sink = Sink()
    client = SharedClient(lambda: connect(folder, api.url))
    discovery = KubernetesDiscovery(source, policies=policies, client=client, **how)
    task = asyncio.create_task(discovery.run(sink))
    try:
        yield discovery, sink
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def status(number: int, *, ready: bool = True) -> Json:
    condition = {"type": "Ready", "status": str(ready)}
    return {"podIP": f"10.0.{number // 250}.{number % 250}", "conditions": [condition]}


def create_pods(api: FakeApi, *numbers: int, labels: dict[str, str] = VLLM) -> None:
    for number in numbers:
        api.create(PODS, f"p{number}", labels=labels, status=status(number))


def spec_of(labels: dict[str, str], *ports: int) -> Json:
    return {
        "selector": {"matchLabels": labels},
        "targetPorts": [{"number": port} for port in ports],
    }


def create_pool(api: FakeApi, labels: dict[str, str] = VLLM, *ports: int) -> None:
    api.create(POOL, "pool", spec=spec_of(labels, *(ports or (8000,))))


def create_former_pool(api: FakeApi, port: int) -> None:
    api.create(FORMER_POOL, "pool", spec={"selector": VLLM, "targetPortNumber": port})


def of_pods(api: FakeApi) -> list[Request]:
    """Return the requests for pods."""
    return [each for each in api.requests if each.path.endswith("/pods")]
