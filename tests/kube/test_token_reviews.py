"""Access to the metrics port, decided by a real API server."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest

from epp.kubernetes.api import ApiClient, load_connection
from epp.kubernetes.token_reviews import Reviews
from epp.observability import Metrics, MetricsServer
from tools.harness.kube.access import (
    METRICS_AUTH_RULES,
    Account,
    create_account,
    grant_cluster_role,
    path_rule,
)
from tools.harness.kube.objects import Namespace
from tools.harness.kube.server import ApiServer


async def make_reviews(api_server: ApiServer, account: Account, folder: Path) -> Reviews:
    path = folder / "config"
    api_server.write_kubeconfig(path, account.namespace, token=api_server.tokens.issue(account))
    connection = await asyncio.to_thread(load_connection, {"KUBECONFIG": str(path)})
    return Reviews(ApiClient(connection))


@pytest.fixture
async def picker(namespace: Namespace) -> Account:
    return await create_account(namespace, "epp")


@pytest.fixture
async def port(
    api_server: ApiServer, namespace: Namespace, picker: Account, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """A metrics port whose process has the rights that the llm-d charts grant."""
    await grant_cluster_role(namespace, picker, METRICS_AUTH_RULES)
    reviews = await make_reviews(api_server, picker, tmp_path)
    async with (
        MetricsServer(Metrics(), host="127.0.0.1", port=0, authorizer=reviews) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        yield client


def bearer(api_server: ApiServer, account: Account, lifetime_seconds: int = 3600) -> dict[str, str]:
    return {"authorization": f"Bearer {api_server.tokens.issue(account, lifetime_seconds)}"}


async def test_a_cluster_role_decides_who_may_read_what(
    api_server: ApiServer, namespace: Namespace, port: httpx.AsyncClient
) -> None:
    reader = await create_account(namespace, "prometheus", [])
    operator = await create_account(namespace, "operator", [])
    await grant_cluster_role(namespace, reader, [path_rule("/metrics")])
    await grant_cluster_role(namespace, operator, [path_rule("/debug/*")])
    status = {}
    for account in (reader, operator):
        headers = bearer(api_server, account)
        for path in ("/metrics", "/debug/missing"):
            response = await port.get(path, headers=headers)
            status[account.name, path] = response.status_code
    assert status == {
        ("prometheus", "/metrics"): 200,
        ("prometheus", "/debug/missing"): 403,
        ("operator", "/metrics"): 403,
        ("operator", "/debug/missing"): 404,
    }


async def test_an_unknown_client_gets_an_error_that_says_so(
    api_server: ApiServer, picker: Account, port: httpx.AsyncClient
) -> None:
    stranger = Account(picker.namespace, "stranger", "no-uid")
    responses = [
        await port.get("/metrics"),
        await port.get("/metrics", headers={"authorization": "Bearer nonsense"}),
        await port.get("/metrics", headers=bearer(api_server, stranger)),
        await port.get("/metrics", headers=bearer(api_server, picker, -120)),
    ]
    assert [response.status_code for response in responses] == [401] * 4


async def test_a_verdict_survives_an_absence_of_the_api_server(
    api_server: ApiServer, namespace: Namespace, port: httpx.AsyncClient
) -> None:
    reader = await create_account(namespace, "prometheus", [])
    await grant_cluster_role(namespace, reader, [path_rule("/metrics")])
    headers = bearer(api_server, reader)
    assert (await port.get("/metrics", headers=headers)).status_code == 200
    await asyncio.to_thread(api_server.kill)
    assert (await port.get("/metrics", headers=headers)).status_code == 200
    assert (await port.get("/debug/", headers=headers)).status_code == 503
    await asyncio.to_thread(api_server.start)
    assert (await port.get("/debug/", headers=headers)).status_code == 403


async def test_without_the_rights_to_review_nothing_is_decided(
    api_server: ApiServer, picker: Account, tmp_path: Path
) -> None:
    reviews = await make_reviews(api_server, picker, tmp_path)
    token = api_server.tokens.issue(picker)
    assert (await reviews.allows(token, "/metrics")).status is HTTPStatus.SERVICE_UNAVAILABLE
    assert 'resources: ["tokenreviews"], verbs: ["create"]' in str(reviews.fault)
    await reviews.close()
