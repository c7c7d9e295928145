"""Several replicas of an endpoint picker, of which one leads and is ready."""

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import httpx
import pytest
from kube.pickers import LABELS, addresses, cluster_picker, pod_of, pool

from tools.harness.gateway import Picker, until
from tools.harness.kube.access import PICKER_RULES, create_account, rule
from tools.harness.kube.objects import Namespace
from tools.harness.kube.server import ApiServer

LEASE_RULES = (
    rule("coordination.k8s.io", ["leases"], ["get", "create", "update"]),
    rule("", ["events"], ["create"]),
)


async def page(picker: Picker) -> dict[str, object]:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://127.0.0.1:{picker.ports.metrics}/debug/kubernetes")
    document: dict[str, object] = answer.json()
    return document


async def metric(picker: Picker) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{picker.ports.metrics}/metrics")).text
    (line,) = [each for each in text.splitlines() if each.startswith("leader_election_master")]
    return line


async def test_one_replica_is_ready_and_another_one_when_it_stops(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod_of(0))
    account = await create_account(namespace, "epp", [*PICKER_RULES, *LEASE_RULES])
    token = api_server.tokens.issue(account)

    def replica() -> AbstractAsyncContextManager[Picker]:
        source = pool(namespace)
        return cluster_picker(
            api_server, monkeypatch, tmp_path, source, token=token, elects_leader=True
        )

    async with AsyncExitStack() as first_stack:
        first = await first_stack.enter_async_context(replica())
        await until(lambda: first.app.is_ready)
        async with replica() as second:
            await until(lambda: len(addresses(second)) == 1)  # it could serve at once
            assert not second.app.is_ready
            seen = await page(second)
            assert (seen["is_leader"], seen["lease_fault"]) == (False, "")
            assert seen["leader"] == (await page(first))["leader"] != ""
            name = f"epp-{namespace.name}-pool.llm-d.ai"
            assert await metric(first) == f'leader_election_master_status{{name="{name}"}} 1.0'
            assert await metric(second) == f'leader_election_master_status{{name="{name}"}} 0.0'
            await first_stack.aclose()
            await until(lambda: second.app.is_ready)


async def test_without_rights_to_leases_the_replica_says_which_are_missing(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod_of(0))
    account = await create_account(namespace, "epp")
    token = api_server.tokens.issue(account)
    async with cluster_picker(
        api_server, monkeypatch, tmp_path, pool(namespace), token=token, elects_leader=True
    ) as picker:
        await until(lambda: len(addresses(picker)) == 1)
        cluster = picker.app._cluster
        assert cluster is not None
        await until(lambda: bool(cluster._status.page().lease_fault))
        assert not picker.app.is_ready
        fault = str((await page(picker))["lease_fault"])
        assert 'resources: ["leases"]' in fault
        assert "403 Forbidden" in fault
