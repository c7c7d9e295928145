"""The rights that the llm-d charts grant an endpoint picker, checked by the API server."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tools.harness.kube.access import LEADER_ELECTION_RULES, PICKER_RULES, create_account
from tools.harness.kube.crds import (
    LEGACY_OBJECTIVE,
    LEGACY_POOL,
    LEGACY_REWRITE,
    OBJECTIVE,
    POOL,
    REWRITE,
    Kind,
)
from tools.harness.kube.objects import MERGE_PATCH, Namespace, Pod, checked, create_namespace
from tools.harness.kube.server import ApiServer

READABLE: list[Kind | str] = [
    "pods",
    POOL,
    OBJECTIVE,
    REWRITE,
    LEGACY_OBJECTIVE,
    LEGACY_REWRITE,
]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


@pytest.fixture
async def picker(api_server: ApiServer, namespace: Namespace) -> AsyncIterator[httpx.AsyncClient]:
    account = await create_account(namespace, "epp")
    token = api_server.tokens.issue(account)
    async with api_server.client(token) as client:
        yield client


def kind_id(kind: Kind | str) -> str:
    return kind if isinstance(kind, str) else f"{kind.plural}.{kind.group}"


@pytest.mark.parametrize("kind", READABLE, ids=kind_id)
async def test_a_picker_may_list_watch_and_get(
    namespace: Namespace, picker: httpx.AsyncClient, kind: Kind | str
) -> None:
    path = namespace.path(kind)
    listed = checked(await picker.get(path))
    assert listed["items"] == []
    version = listed["metadata"]["resourceVersion"]
    query = {"watch": "true", "timeoutSeconds": "1", "resourceVersion": version}
    async with picker.stream("GET", path, params=query) as watch:
        assert watch.status_code == 200
    assert (await picker.get(f"{path}/missing")).status_code == 404


@pytest.mark.parametrize(
    "kind", ["secrets", "configmaps", "services", "endpoints", "events", LEGACY_POOL], ids=kind_id
)
async def test_a_picker_may_read_nothing_else(
    namespace: Namespace, picker: httpx.AsyncClient, kind: Kind | str
) -> None:
    refused = await picker.get(namespace.path(kind))
    assert refused.status_code == 403
    user = f'User "system:serviceaccount:{namespace.name}:epp"'
    plural = kind if isinstance(kind, str) else kind.plural
    assert f'{user} cannot list resource "{plural}" in API group' in refused.json()["message"]


async def test_a_picker_may_change_nothing(namespace: Namespace, picker: httpx.AsyncClient) -> None:
    await namespace.create_pods(Pod(name="a"))
    await namespace.create_objective("batch", "pool")
    pods, status = namespace.path("pods"), namespace.path(OBJECTIVE, "batch") + "/status"
    responses = [
        await picker.post(pods, json=Pod(name="b").document()),
        await picker.patch(f"{pods}/a", json={}, headers=MERGE_PATCH),
        await picker.delete(f"{pods}/a"),
        await picker.patch(status, json={"status": {}}, headers=MERGE_PATCH),
        await picker.get(LEASES.format(namespace.name)),
    ]
    assert [response.status_code for response in responses] == [403] * 5
    verbs = ("create", "patch", "delete", "patch", "list")
    for response, verb in zip(responses, verbs, strict=True):
        assert f"cannot {verb} resource" in response.json()["message"]


async def test_a_picker_sees_its_own_namespace_only(
    admin: httpx.AsyncClient, picker: httpx.AsyncClient
) -> None:
    other = await create_namespace(admin)
    for path in (other.path("pods"), "/api/v1/pods", "/api/v1/nodes"):
        assert (await picker.get(path)).status_code == 403


async def test_a_replica_may_hold_a_lease_and_write_events(
    api_server: ApiServer, namespace: Namespace
) -> None:
    rules = (*PICKER_RULES, *LEADER_ELECTION_RULES)
    account = await create_account(namespace, "epp", rules)
    event = {
        "metadata": {"generateName": "epp-", "namespace": namespace.name},
        "involvedObject": {"kind": "Lease", "name": "epp", "namespace": namespace.name},
        "reason": "LeaderElection",
    }
    async with api_server.client(api_server.tokens.issue(account)) as replica:
        leases = LEASES.format(namespace.name)
        made = checked(await replica.post(leases, json={"metadata": {"name": "epp"}}))
        checked(await replica.put(f"{leases}/epp", json=made))
        checked(await replica.post(namespace.path("events"), json=event))
        assert (await replica.get(namespace.path("events"))).status_code == 403


async def test_an_expired_token_is_refused(api_server: ApiServer, namespace: Namespace) -> None:
    account = await create_account(namespace, "epp")
    path = namespace.path("pods")
    for lifetime_seconds, status in ((60, 200), (-120, 401)):
        token = api_server.tokens.issue(account, lifetime_seconds)
        async with api_server.client(token) as client:
            assert (await client.get(path)).status_code == status
