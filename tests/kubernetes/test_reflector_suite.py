"""The reflector suite against the fake API server: with and without watch lists, and relayed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from epp.kubernetes.api import ApiClient, Resource

from .conftest import connect
from .fake_api import CONFIG_MAPS, FakeApi
from .reflector_suite import ReflectorSuite
from .relays import relayed_client


@dataclass
class FakeCluster:
    """The fake API server, as the suite sees it."""

    api: FakeApi
    client: ApiClient
    direct: ApiClient
    resource: Resource = field(default=CONFIG_MAPS)
    namespace: str = "d"

    async def create(self, name: str, value: str, labels: dict[str, str] | None = None) -> None:
        self.api.create(self.resource, name, labels=labels, data={"value": value})

    async def update(self, name: str, value: str, labels: dict[str, str] | None = None) -> None:
        self.api.update(self.resource, name, labels=labels, data={"value": value})

    async def delete(self, name: str) -> None:
        self.api.delete(self.resource, name)

    async def compact(self) -> None:
        self.api.state.compact()

    @asynccontextmanager
    async def no_watches(self) -> AsyncIterator[None]:
        self.api.cut_watches()
        yield  # none can be opened: what the cluster does here waits for nothing


@pytest.fixture(params=["served", "refused"])
def cluster(request: pytest.FixtureRequest, api: FakeApi, client: ApiClient) -> FakeCluster:
    watch_list: Literal["served", "refused"] = request.param
    api.faults.watch_list = watch_list
    return FakeCluster(api, client, client)


class TestReflectorOnTheFake(ReflectorSuite):
    """All tests are inherited."""


class TestReflectorBehindARelay(ReflectorSuite):
    """All tests are inherited."""

    @pytest.fixture
    async def cluster(
        self, api: FakeApi, client: ApiClient, tmp_path: Path
    ) -> AsyncIterator[FakeCluster]:
        async with relayed_client(lambda: connect(tmp_path, api.url)) as relayed:
            yield FakeCluster(api, relayed, client)
