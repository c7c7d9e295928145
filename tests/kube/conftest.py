"""One API server for all tests, a namespace for each; helm without a cluster and with it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from kube.charts import foreign_definitions, program

from tools.chart.helm import Helm
from tools.harness.kube.manifests import Manifests
from tools.harness.kube.objects import Namespace, create_namespace, install, post
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


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Renders; it knows no cluster."""
    return Helm(program("helm"), tmp_path_factory.mktemp("helm"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_manifests(shared_api_server: ApiServer) -> AsyncIterator[Manifests]:
    async with shared_api_server.client() as admin:
        await install(admin, foreign_definitions())
        await post(admin, "/api/v1/namespaces", {"metadata": {"name": "gateway-infra"}})
        yield Manifests(admin)


@pytest.fixture
def manifests(shared_manifests: Manifests, admin: httpx.AsyncClient) -> Manifests:
    """Sends objects to a cluster that knows the kinds of all projects."""
    return Manifests(admin)


@pytest.fixture
def cluster_helm(shared_manifests: Manifests, api_server: ApiServer, tmp_path: Path) -> Helm:
    """Installs into that cluster."""
    kubeconfig = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(kubeconfig)
    return Helm(program("helm"), tmp_path, kubeconfig)
