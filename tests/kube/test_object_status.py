"""The conditions that endpoint pickers write on a real API server, with and without the right."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kube.pickers import LABELS, cluster_picker, pool
from log_watch import Logs

from epp.kubernetes.api import ApiClient, ApiError, Resource, load_connection
from epp.kubernetes.conditions import Condition, ObjectStatus
from tools.harness.gateway import Picker, until
from tools.harness.kube.access import PICKER_RULES, STATUS_RULES, create_account
from tools.harness.kube.crds import (
    LEGACY_OBJECTIVE,
    LEGACY_REWRITE,
    OBJECTIVE,
    POOL,
    REWRITE,
    Document,
    Kind,
)
from tools.harness.kube.objects import MERGE_PATCH, Namespace, checked
from tools.harness.kube.server import ApiServer

RULE = {"matches": [{"model": {"value": "chat"}}], "targets": [{"modelRewrite": "chat-v2"}]}
IN_USE = {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("True", "ResolvedRefs")}


class Cluster:
    """Endpoint pickers of one account in a namespace."""

    def __init__(self, api_server: ApiServer, namespace: Namespace, start: Any) -> None:
        self.namespace = namespace
        self._api_server = api_server
        self._start = start

    @asynccontextmanager
    async def picker(self, rules: Sequence[Document], **settings: Any) -> AsyncIterator[Picker]:
        account = await create_account(self.namespace, f"epp-{random.randrange(10**9)}", rules)
        token = self._api_server.tokens.issue(account)
        async with self._start(pool(self.namespace), token=token, **settings) as picker:
            yield picker

    async def get(self, kind: Kind, name: str) -> Document:
        return checked(await self.namespace.admin.get(self.namespace.path(kind, name)))

    async def conditions(self, kind: Kind, name: str) -> dict[str, tuple[str, str]]:
        """Return the status and the reason of each condition."""
        conditions = (await self.get(kind, name)).get("status", {}).get("conditions", ())
        return {each["type"]: (each["status"], each["reason"]) for each in conditions}

    async def until(self, kind: Kind, name: str, **expected: tuple[str, str]) -> None:
        async with asyncio.timeout(10):
            while await self.conditions(kind, name) != expected:  # noqa: ASYNC110 - of a server
                await asyncio.sleep(0.05)


@pytest.fixture
def cluster(
    api_server: ApiServer, namespace: Namespace, monkeypatch: Any, tmp_path: Path
) -> Cluster:
    def start(source: Any, **how: Any) -> Any:
        return cluster_picker(api_server, monkeypatch, tmp_path, source, **how)

    return Cluster(api_server, namespace, start)


@pytest.fixture
async def client(api_server: ApiServer, tmp_path: Path) -> AsyncIterator[ApiClient]:
    api_server.write_kubeconfig(tmp_path / "admin")
    environ = {"KUBECONFIG": str(tmp_path / "admin")}
    async with ApiClient(await asyncio.to_thread(load_connection, environ)) as made:
        yield made


async def test_objects_say_whether_they_are_in_use_and_their_pool_exists(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_objective("batch", "pool", -1)
    await namespace.create_objective("foreign", "other", -1)
    await namespace.create_rewrite("canary", "pool", RULE)
    await namespace.create_rewrite("canary-2", "pool", RULE)
    await namespace.create_objective("former", "pool", kind=LEGACY_OBJECTIVE)
    await namespace.create_rewrite("former", "pool", RULE, kind=LEGACY_REWRITE)
    async with cluster.picker([*PICKER_RULES, *STATUS_RULES]):
        no_pool = IN_USE | {"ResolvedRefs": ("False", "PoolNotFound")}
        await cluster.until(OBJECTIVE, "batch", **no_pool)
        await namespace.create_pool("pool", LABELS, [8000])
        await cluster.until(OBJECTIVE, "batch", **IN_USE)
        await cluster.until(REWRITE, "canary", **IN_USE)
        conflicted = IN_USE | {"Accepted": ("False", "Conflicted")}
        await cluster.until(REWRITE, "canary-2", **conflicted)
        other_group = IN_USE | {"Accepted": ("False", "OtherGroupInUse")}
        await cluster.until(LEGACY_OBJECTIVE, "former", **other_group)
        await cluster.until(LEGACY_REWRITE, "former", **other_group)
        assert await cluster.conditions(OBJECTIVE, "foreign") == {}
        path = namespace.path(OBJECTIVE, "batch")
        patch = {"spec": {"priority": 3}}
        checked(await namespace.admin.patch(path, json=patch, headers=MERGE_PATCH))
        async with asyncio.timeout(10):
            while (await observed(cluster, "batch")) != [2, 2]:  # noqa: ASYNC110 - of a server
                await asyncio.sleep(0.05)
        checked(await namespace.admin.delete(namespace.path(POOL, "pool")))
        await cluster.until(OBJECTIVE, "batch", **no_pool)


async def observed(cluster: Cluster, name: str) -> list[int]:
    """Return the generations that the conditions of an objective are about."""
    conditions = (await cluster.get(OBJECTIVE, name))["status"]["conditions"]
    return [each["observedGeneration"] for each in conditions]


async def test_without_the_right_the_missing_rule_is_named_and_objectives_count(
    cluster: Cluster, logs: Logs
) -> None:
    await cluster.namespace.create_pool("pool", LABELS, [8000])
    await cluster.namespace.create_objective("batch", "pool", -1)
    async with cluster.picker(PICKER_RULES) as picker:
        await logs.until('resources: ["inferenceobjectives/status"], verbs: ["patch"]')
        await until(partial(has_priority, picker, "batch", -1))
    assert await cluster.conditions(OBJECTIVE, "batch") == {}


async def test_it_can_be_turned_off(cluster: Cluster) -> None:
    await cluster.namespace.create_pool("pool", LABELS, [8000])
    await cluster.namespace.create_objective("batch", "pool", -1)
    rules = [*PICKER_RULES, *STATUS_RULES]
    async with (
        cluster.picker(rules, writes_object_status=False) as silent,
        cluster.picker(rules) as writing,
    ):
        for each in (silent, writing):
            await until(partial(has_priority, each, "batch", -1))
        await cluster.until(OBJECTIVE, "batch", **IN_USE)
        within = silent.app._cluster
        assert within is not None
        policies = within.discoveries[0]._objects.policies
        assert policies is not None
        assert policies.writer is None


def has_priority(picker: Picker, objective: str, priority: int) -> bool:
    return picker.app.pool.objects.priority_of(objective) == priority


async def test_three_replicas_write_each_status_once(cluster: Cluster) -> None:
    await cluster.namespace.create_pool("pool", LABELS, [8000])
    for number in range(6):
        await cluster.namespace.create_objective(f"o{number}", "pool", -1)
    versions = [(await cluster.get(OBJECTIVE, f"o{number}"))["metadata"] for number in range(6)]
    path = cluster.namespace.path(OBJECTIVE)
    query = {"watch": "true", "resourceVersion": versions[-1]["resourceVersion"]}
    async with AsyncExitStack() as stack:
        response = await stack.enter_async_context(
            cluster.namespace.admin.stream("GET", path, params=query, timeout=None)
        )
        for _ in range(3):
            picker = cluster.picker([*PICKER_RULES, *STATUS_RULES])
            await stack.enter_async_context(picker)
        for number in range(6):
            await cluster.until(OBJECTIVE, f"o{number}", **IN_USE)
        await cluster.namespace.create_objective("end", "pool", -1)
        await cluster.until(OBJECTIVE, "end", **IN_USE)
        events = [line async for line in until_end(response.aiter_lines())]
    changes = sum('"MODIFIED"' in line for line in events)
    assert changes == 7


async def until_end(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the lines of a watch until the object ``end`` has a status."""
    async for line in lines:
        yield line
        if '"name":"end"' in line and '"MODIFIED"' in line:
            return


def make_status(namespace: Namespace, made: Document) -> ObjectStatus:
    meta = made["metadata"]
    return ObjectStatus(
        resource=Resource(OBJECTIVE.group, OBJECTIVE.version, OBJECTIVE.plural, OBJECTIVE.name),
        namespace=namespace.name,
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        generation=meta["generation"],
        wanted=(Condition("Accepted", True, "Accepted", "in use"),),
        found=made.get("status"),
    )


async def write(client: ApiClient, status: ObjectStatus) -> Document:
    return await client.patch(
        status.resource,
        status.patch(1_800_000_000.0),
        dict[str, Any],
        name=status.name,
        namespace=status.namespace,
        subresource="status",
    )


async def test_a_status_is_written_over_the_version_that_was_seen_alone(
    client: ApiClient, namespace: Namespace
) -> None:
    made = await namespace.create_objective("batch", "pool", -1)
    seen = make_status(namespace, made)
    written = make_status(namespace, await write(client, seen))
    assert written.is_current
    with pytest.raises(ApiError) as refused:
        await write(client, seen)
    assert refused.value.status == 409


async def test_what_is_missing_shows_in_the_refusal(
    client: ApiClient, namespace: Namespace
) -> None:
    """The error for a missing object has its name, that for a kind without a status has not."""
    gone = make_status(namespace, await namespace.create_objective("batch", "pool", -1))
    checked(await namespace.admin.delete(namespace.path(OBJECTIVE, "batch")))
    with pytest.raises(ApiError, match="404 NotFound") as refused:
        await write(client, gone)
    assert '"batch"' in refused.value.message
    config_maps = namespace.path("configmaps")
    made = checked(await namespace.admin.post(config_maps, json={"metadata": {"name": "settings"}}))
    made["metadata"]["generation"] = 0
    without = make_status(namespace, made)
    with pytest.raises(ApiError) as refused:
        await write(
            client, replace(without, resource=Resource("", "v1", "configmaps", "ConfigMap"))
        )
    assert refused.value.status == 404
    assert '"settings"' not in refused.value.message
