"""Pods, pools, objectives and rewrites of a real API server become endpoints and policies."""

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from kube.pickers import LABELS, addresses, cluster_picker, names, pod_of, pool, selected

from epp.kubernetes.source import FORMER_POOL_GROUP, PodSource, PoolRef
from tools.harness.gateway import Picker, until
from tools.harness.kube.access import create_account
from tools.harness.kube.crds import LEGACY_OBJECTIVE, LEGACY_POOL, OBJECTIVE, POOL, REWRITE
from tools.harness.kube.objects import Namespace, Pod, pod_status
from tools.harness.kube.server import ApiServer


class Cluster:
    """Runs pickers for one test."""

    def __init__(
        self,
        api_server: ApiServer,
        namespace: Namespace,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
    ) -> None:
        self.server = api_server
        self.namespace = namespace
        self._monkeypatch = monkeypatch
        self._folder = folder

    def picker(
        self, source: PodSource | None = None, **settings: Any
    ) -> AbstractAsyncContextManager[Picker]:
        return cluster_picker(
            self.server,
            self._monkeypatch,
            self._folder,
            source or pool(self.namespace),
            **settings,
        )


@pytest.fixture
def cluster(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Cluster:
    return Cluster(api_server, namespace, monkeypatch, tmp_path)


async def test_ready_pods_of_the_pool_are_endpoints_one_for_each_port(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_pool("pool", LABELS, [8000, 8001])
    await namespace.create_pods(
        Pod(name="a", labels=LABELS, ip="10.0.0.1"),
        Pod(name="b", labels=LABELS, ip="fd00::2"),
        Pod(name="unready", labels=LABELS, ip="10.0.0.3", ready=False),
        Pod(name="without-address", labels=LABELS),
        Pod(name="other", labels={"app": "web"}, ip="10.0.0.4"),
    )
    async with cluster.picker() as picker:
        await until(lambda: len(addresses(picker)) == 4)
        assert names(picker) == ["a-rank-0", "a-rank-1", "b-rank-0", "b-rank-1"]
        assert addresses(picker) == [
            *("10.0.0.1:8000", "10.0.0.1:8001"),
            *("[fd00::2]:8000", "[fd00::2]:8001"),
        ]
        assert picker.app.is_ready
        assert all(endpoint.labels == LABELS for endpoint in picker.app.pool.store.snapshot)


async def test_changes_of_a_pod_are_followed_and_keep_the_endpoint(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(Pod(name="a", labels=LABELS, ip="10.0.0.1"))
    async with cluster.picker() as picker:
        await until(lambda: addresses(picker) == ["10.0.0.1:8000"])
        (first,) = picker.app.pool.store.snapshot
        await namespace.patch_pods({"a": {"metadata": {"labels": {"zone": "x"}}}})
        await until(lambda: first.labels.get("zone") == "x")
        assert picker.app.pool.store.snapshot == (first,)
        for patch, expected in (
            (pod_status(ip="10.0.0.1", ready=False), []),
            (pod_status(ip="10.0.0.1", ready=True), ["10.0.0.1:8000"]),
            (pod_status(ip="10.0.0.9", ready=True), ["10.0.0.9:8000"]),
            ({"metadata": {"labels": {"app": "web"}}}, []),
        ):
            await namespace.patch_pods({"a": patch})
            await until(partial(_has, picker, expected))


def _has(picker: Picker, expected: list[str]) -> bool:
    return addresses(picker) == expected


@pytest.mark.parametrize(
    ("annotations", "ranks"),
    [
        ({"llm-d.ai/active-ports": "8001"}, ["a-rank-1"]),
        ({"inference.networking.k8s.io/active-ports": " 8000, 9 "}, ["a-rank-0"]),
        (
            {
                "llm-d.ai/active-ports": "8001x",
                "inference.networking.k8s.io/active-ports": "8000",
            },
            ["a-rank-1"],
        ),
        ({}, ["a-rank-0", "a-rank-1"]),
    ],
)
async def test_an_annotation_says_which_ports_are_active(
    cluster: Cluster, annotations: dict[str, str], ranks: list[str]
) -> None:
    namespace = cluster.namespace
    await namespace.create_pool("pool", LABELS, [8000, 8001])
    await namespace.create_pods(
        Pod(name="a", labels=LABELS, ip="10.0.0.1", annotations=annotations)
    )
    async with cluster.picker() as picker:
        await until(lambda: names(picker) == ranks)
        empty = {"metadata": {"annotations": {"llm-d.ai/active-ports": ""}}}
        await namespace.patch_pods({"a": empty})
        await until(lambda: names(picker) == [])


async def test_a_terminating_pod_gets_nothing_more(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(Pod(name="a", labels=LABELS, ip="10.0.0.1", node="node-1"))
    async with cluster.picker() as picker:
        await until(lambda: len(addresses(picker)) == 1)
        await namespace.delete_pods("a", grace_seconds=300)
        await until(lambda: addresses(picker) == [])


async def test_a_pod_made_anew_under_its_name_is_another_server(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(Pod(name="a", labels=LABELS, ip="10.0.0.1"))
    async with cluster.picker() as picker:
        await until(lambda: len(addresses(picker)) == 1)
        (first,) = picker.app.pool.store.snapshot
        first.load.start(0.0)
        await namespace.delete_pods("a")
        await namespace.create_pods(Pod(name="a", labels=LABELS, ip="10.0.0.1"))
        await until(lambda: picker.app.pool.store.snapshot not in {(), (first,)})
        (second,) = picker.app.pool.store.snapshot
        assert (second.name, second.address) == (first.name, first.address)
        assert (second.load.in_flight, first.load.in_flight) == (0, 1)


async def test_a_pool_that_is_made_later_changed_and_deleted(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_pods(
        Pod(name="a", labels=LABELS, ip="10.0.0.1"),
        Pod(name="b", labels={"app": "b"}, ip="10.0.0.2"),
    )
    async with cluster.picker() as picker:
        assert not picker.app.is_ready
        await namespace.create_pool("pool", LABELS, [8000])
        await until(lambda: addresses(picker) == ["10.0.0.1:8000"])
        assert picker.app.is_ready
        path = namespace.path(POOL, "pool")
        for patch, expected in (
            ({"targetPorts": [{"number": 9000}]}, ["10.0.0.1:9000"]),
            ({"selector": {"matchLabels": {"app": "b"}}}, ["10.0.0.2:9000"]),
        ):
            response = await namespace.admin.patch(
                path,
                json={"spec": patch},
                headers={"content-type": "application/merge-patch+json"},
            )
            assert response.is_success, response.text
            await until(partial(_has, picker, expected))
        assert (await namespace.admin.delete(path)).is_success
        await until(lambda: addresses(picker) == [])
        assert not picker.app.is_ready
        await namespace.create_pool("pool", LABELS, [8000])
        await until(lambda: addresses(picker) == ["10.0.0.1:8000"])
        assert picker.app.is_ready


async def test_pods_of_a_selector_need_no_pool(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_pods(
        Pod(name="a", labels={"app": "vllm", "tier": "x"}, ip="10.0.0.1"),
        Pod(name="b", labels={"app": "vllm"}, ip="10.0.0.2"),
        Pod(name="c", labels={"app": "web", "tier": "x"}, ip="10.0.0.3"),
    )
    async with cluster.picker(selected(namespace, "app in (vllm),tier", 8000)) as picker:
        await until(lambda: addresses(picker) == ["10.0.0.1:8000"])
        assert picker.app.is_ready


async def test_pools_of_the_former_group_are_read(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create(LEGACY_POOL, "pool", {"selector": LABELS, "targetPortNumber": 8000})
    await namespace.create_pods(Pod(name="a", labels=LABELS, ip="10.0.0.1"))
    source = PodSource(namespace.name, PoolRef("pool", FORMER_POOL_GROUP))
    async with cluster.picker(source) as picker:
        await until(lambda: addresses(picker) == ["10.0.0.1:8000"])


async def test_objectives_and_rewrites_of_the_pool_apply(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_objective("batch", "pool", -1)
    await namespace.create_objective("foreign", "other", 7)
    await namespace.create_rewrite(
        "canary",
        "pool",
        {
            "matches": [{"model": {"type": "Exact", "value": "chat"}}],
            "targets": [{"modelRewrite": "chat-v2"}],
        },
    )
    async with cluster.picker() as picker:
        policies = picker.app.pool.objects
        await until(lambda: policies.priority_of("batch") == -1)
        await until(lambda: policies.target_of("chat") == "chat-v2")
        assert policies.priority_of("foreign") == 0
        await namespace.admin.delete(namespace.path(OBJECTIVE, "batch"))
        await until(lambda: policies.priority_of("batch") == 0)
        await namespace.admin.delete(namespace.path(POOL, "pool"))
        await until(lambda: not picker.app.is_ready)
        assert policies.target_of("chat") == "chat-v2"  # for the pool that may follow
        await namespace.admin.delete(namespace.path(REWRITE, "canary"))
        await until(lambda: policies.target_of("chat") is None)


async def test_where_a_group_has_objectives_those_of_the_former_one_do_not_count(
    cluster: Cluster,
) -> None:
    namespace = cluster.namespace
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_objective("old", "pool", 5, kind=LEGACY_OBJECTIVE)
    await namespace.create_objective("new", "pool", 3)
    async with cluster.picker() as picker:
        await until(lambda: picker.app.pool.objects.priority_of("new") == 3)
        assert picker.app.pool.objects.priority_of("old") == 0


async def test_the_role_of_the_go_epps_charts_suffices(cluster: Cluster) -> None:
    namespace = cluster.namespace
    account = await create_account(namespace, "epp")
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_objective("batch", "pool", -1)
    await namespace.create_pods(pod_of(0))
    async with cluster.picker(token=cluster.server.tokens.issue(account)) as picker:
        await until(lambda: len(addresses(picker)) == 1)
        await until(lambda: picker.app.pool.objects.priority_of("batch") == -1)


async def test_routing_goes_on_while_the_api_server_is_away(cluster: Cluster) -> None:
    namespace = cluster.namespace
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod_of(0))
    async with cluster.picker() as picker:
        await until(lambda: len(addresses(picker)) == 1)
        cluster.server.kill()
        assert picker.app._cluster is not None
        (discovery,) = picker.app._cluster.discoveries
        await until(lambda: discovery.statuses()["pods"].fault is not None)
        url = f"http://127.0.0.1:{picker.ports.metrics}"
        async with httpx.AsyncClient(trust_env=False) as client:
            page = (await client.get(f"{url}/debug/kubernetes")).json()
            metrics = (await client.get(f"{url}/metrics")).text
        (pods,) = [copy for copy in page["copies"] if copy["resource"] == "pods"]
        assert pods["fault"].startswith("cannot connect to https://127.0.0.1:")
        assert 'llm_d_epp_kubernetes_faulty{resource="pods"} 1.0' in metrics
        assert len(addresses(picker)) == 1
        assert picker.app.is_ready
        cluster.server.start()
        await namespace.create_pods(pod_of(1))
        await until(lambda: len(addresses(picker)) == 2)
        assert discovery.statuses()["pods"].fault is None
