"""One API server for all tests, a namespace for each."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tools.harness.kube.objects import Namespace, create_namespace, install
from tools.harness.kube.server import ApiServer
from tools.kube.build import SERVERS, find


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests the time of tests that start processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_api_server() -> AsyncIterator[ApiServer]:
    assets = find(SERVERS)
    assert assets, "kube-apiserver and etcd are missing: make test-kube builds them"
    with ApiServer(assets) as server:
        async with server.client() as client:
            await install(client)
        yield server


@pytest.fixture
def api_server(shared_api_server: ApiServer) -> Iterator[ApiServer]:
    """A test may stop it; it runs again for the next one."""
    yield shared_api_server
    shared_api_server.start()


@pytest.fixture
async def admin(api_server: ApiServer) -> AsyncIterator[httpx.AsyncClient]:
    async with api_server.client() as client:
        yield client


@pytest.fixture
async def namespace(admin: httpx.AsyncClient) -> Namespace:
    return await create_namespace(admin)
