"""Several replicas of an endpoint picker, of which one leads and is ready."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from kube.lease_history import holders, lease_history, seconds_until_taken
from kube.pickers import (
    LABELS,
    addresses,
    cluster_picker,
    gateway,
    pod_of,
    pod_servers,
    pool,
)
from kube.relay import relay

from epp.config import DEFAULT_CONFIG, load_file, load_text
from epp.kubernetes.lease import LEASE_SECONDS
from tools.harness.gateway import Picker, until
from tools.harness.kube.access import PICKER_RULES, create_account, rule
from tools.harness.kube.objects import Namespace
from tools.harness.kube.server import ApiServer

SLOWNESS_SECONDS = 5.0
"""What a busy machine may add to a limit."""

LEASE_RULES = (
    rule("coordination.k8s.io", ["leases"], ["get", "create", "update"]),
    rule("", ["events"], ["create"]),
)


async def page(picker: Picker) -> dict[str, object]:
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.get(f"http://127.0.0.1:{picker.ports.metrics}/debug/kubernetes")
    document: dict[str, object] = response.json()
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
            stopping = time.monotonic()
            await first_stack.aclose()
            await until(lambda: second.app.is_ready)
            assert time.monotonic() - stopping <= 2 + SLOWNESS_SECONDS


async def test_a_leader_that_is_cut_off_is_unready_before_another_one_leads(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ready: list[tuple[str, ...]] = []

    async def note_ready(**pickers: Picker) -> None:
        """Note each change of which replicas are ready."""
        while True:
            now = tuple(name for name, each in pickers.items() if each.app.is_ready)
            if ready[-1:] != [now]:
                ready.append(now)
            await asyncio.sleep(0.005)

    def replica(server: str) -> AbstractAsyncContextManager[Picker]:
        source = pool(namespace)
        return cluster_picker(
            api_server, monkeypatch, tmp_path, source, server=server, elects_leader=True
        )

    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod_of(0))
    name = f"epp-{namespace.name}-pool.llm-d.ai"
    async with (
        lease_history(namespace, name, asyncio.Event()) as specs,
        relay(api_server.url) as link,
        replica(link.url) as first,
    ):
        await until(lambda: first.app.is_ready)
        async with replica("") as second:
            await until(lambda: len(addresses(second)) == 1)
            noting = asyncio.create_task(note_ready(first=first, second=second))
            link.cut()
            cut = time.monotonic()
            await until(lambda: not first.app.is_ready)
            assert time.monotonic() - cut <= 10 + SLOWNESS_SECONDS
            await until(lambda: second.app.is_ready)
            assert time.monotonic() - cut <= 17 + SLOWNESS_SECONDS
            assert len(addresses(first)) == 1  # it knows what it knew
            assert (await page(first))["lease_fault"]
            link.mend()
            followed = (await page(second))["leader"]
            await namespace.create_pods(pod_of(1))
            await until(lambda: len(addresses(first)) == 2)
            while (await page(first))["leader"] != followed:  # noqa: ASYNC110 - of a server
                await asyncio.sleep(0.05)
            noting.cancel()
            assert ready == [("first",), (), ("second",)]
    first_holder, second_holder, *released = holders(specs)
    assert first_holder != second_holder == followed
    assert released in ([""], ["", first_holder])  # the second one has stopped
    assert seconds_until_taken(specs) >= LEASE_SECONDS


KNOWS_NOTHING = DEFAULT_CONFIG + "featureGates: [haPopulateNonLeaderDatastore=false]\n"


async def test_a_standby_that_is_to_know_nothing_refuses_requests_until_it_leads(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    async def status(url: str) -> int:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            body = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
            return (await client.post(f"{url}/v1/completions", json=body)).status_code

    def replica() -> AbstractAsyncContextManager[Picker]:
        config = load_text(KNOWS_NOTHING, "test")
        source = pool(namespace)
        return cluster_picker(
            api_server, monkeypatch, tmp_path, source, config=config, elects_leader=True
        )

    await namespace.create_objective("batch", "pool", -1)
    await namespace.create_pods(pod_of(0))
    async with AsyncExitStack() as first_stack, pod_servers(1, time_scale=0.02) as servers:
        await namespace.create_pool("pool", LABELS, [servers[0].port])
        first = await first_stack.enter_async_context(replica())
        await until(lambda: first.app.is_ready and len(addresses(first)) == 1)
        async with replica() as second, gateway(second, servers) as url:
            await until(lambda: second.app.pool.store.synced)
            assert (second.app.is_ready, addresses(second)) == (False, [])
            assert await status(url) == 503
            await first_stack.aclose()
            await until(lambda: second.app.is_ready)
            assert addresses(second) == [servers[0].address]
            await until(lambda: second.app.pool.objects.priority_of("batch") == -1)
            assert await status(url) == 200


async def test_a_reload_changes_what_a_standby_knows(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod_of(0))
    file = tmp_path / "config.yaml"
    await asyncio.to_thread(file.write_text, KNOWS_NOTHING)
    config = await asyncio.to_thread(load_file, file)

    def replica() -> AbstractAsyncContextManager[Picker]:
        source = pool(namespace)
        how: dict[str, Any] = {"config": config, "config_file": file, "config_poll_seconds": 0.05}
        return cluster_picker(api_server, monkeypatch, tmp_path, source, elects_leader=True, **how)

    async with replica() as first:
        await until(lambda: first.app.is_ready)
        async with replica() as second:
            await until(lambda: second.app.pool.store.synced)
            assert addresses(second) == []
            await asyncio.to_thread(file.write_text, DEFAULT_CONFIG)
            await until(lambda: len(addresses(second)) == 1)
            assert not second.app.is_ready


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
