"""Reports of the discovery while pools, pods and rights change, on the fake API server."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from log_watch import Logs

from epp.data_layer import DiscoveryError, ObjectStore
from epp.kubernetes.api import ConfigurationError, Connection
from epp.kubernetes.api.backoff import Backoff
from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.policy_objects import OBJECTIVES, REWRITES
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.source import (
    FORMER_POOL_GROUP,
    POOL_GROUP,
    PodSelection,
    PodSource,
    PoolRef,
)

from .discoveries import (
    FORMER_POOL,
    OF_FORMER_POOL,
    OF_POOL,
    POOL,
    VLLM,
    Sink,
    create_former_pool,
    create_pods,
    create_pool,
    discovering,
    of_pods,
    spec_of,
    status,
)
from .fake_api import PODS, FakeApi

Discover = Callable[..., Any]


@pytest.fixture
def discover(api: FakeApi, tmp_path: Path) -> Discover:
    """Return a function that runs a discovery; the pool's kinds are installed."""
    for resource in (POOL, FORMER_POOL):
        api.serve(resource)
    return partial(discovering, api, tmp_path)


# Pods


async def test_pods_become_endpoints_and_their_changes_are_reported(
    api: FakeApi, discover: Discover
) -> None:
    create_pool(api, VLLM, 8000, 8001)
    create_pods(api, 1)
    async with discover() as (discovery, sink):
        await sink.until("10.0.0.1:8000", "10.0.0.1:8001")
        assert discovery.is_pool_known
        create_pods(api, 2, labels=VLLM | {"zone": "x"})
        create_pods(api, 3, labels={"app": "web"})
        await sink.until("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001")
        api.update(PODS, "p1", status=status(1, ready=False))
        await sink.until("10.0.0.2:8000", "10.0.0.2:8001")
        api.update(PODS, "p2", labels={"app": "web"})
        await sink.until()
        api.update(PODS, "p3", labels=VLLM)
        await sink.until("10.0.0.3:8000", "10.0.0.3:8001")
        api.delete(PODS, "p3")
        await sink.until()


async def test_pods_are_asked_for_by_the_labels_of_the_pool(
    api: FakeApi, discover: Discover
) -> None:
    create_pool(api, {"tier": "x", "app": "vllm"})
    async with discover() as (_, sink):
        await sink.until()
    assert {each.path for each in of_pods(api)} == {"/api/v1/namespaces/d/pods"}
    assert {each.query["labelSelector"] for each in of_pods(api)} == {"app=vllm,tier=x"}
    pools = [each for each in api.requests if each.path.endswith("/inferencepools")]
    assert {each.query["fieldSelector"] for each in pools} == {"metadata.name=pool"}


async def test_pods_that_come_together_are_reported_together(
    api: FakeApi, discover: Discover
) -> None:
    create_pool(api)
    create_pods(api, *range(300))
    async with discover() as (_, sink):
        await sink.until_true(lambda: bool(sink.reports))
        assert [len(each) for each in sink.reports] == [300]
        for number in range(300):
            api.update(PODS, f"p{number}", status=status(number, ready=False))
        await sink.until()
        # As many as reads from the network, which has 100 KB to bring.
        assert len(sink.reports) < 20


async def test_a_change_that_concerns_no_endpoint_is_not_reported(
    api: FakeApi, discover: Discover
) -> None:
    create_pool(api)
    create_pods(api, 1, 2)
    async with discover() as (discovery, sink):
        await sink.until("10.0.0.1:8000", "10.0.0.2:8000")
        api.update(PODS, "p1", status=status(1) | {"phase": "Running"})
        api.create(PODS, "p3", labels=VLLM, status=status(3, ready=False))
        api.update(PODS, "p3", status=status(3, ready=False) | {"phase": "Pending"})
        api.delete(PODS, "p3")
        await _until_seen(api, discovery)
        api.update(PODS, "p2", labels=VLLM | {"zone": "x"})
        await sink.until_true(lambda: len(sink.reports) == 2)
        assert [each.labels for each in sink.reports[1]] == [VLLM, VLLM | {"zone": "x"}]


async def test_the_log_says_once_for_each_reason_why_no_pod_is_an_endpoint(
    api: FakeApi, discover: Discover, logs: Logs
) -> None:
    create_pool(api, VLLM, 8000)
    create_pods(api, 1, labels={"app": "web"})
    async with discover() as (discovery, sink):
        await sink.until()
        await _until_seen(api, discovery)
        create_pods(api, 2)
        await sink.until("10.0.0.2:8000")
        annotations = {"llm-d.ai/active-ports": ""}
        api.state.patch(PODS, ("d", "p2"), {"metadata": {"annotations": annotations}})
        await sink.until()
        api.update(POOL, "pool", spec=spec_of({"app": "vlm"}, 8000))
        await logs.until("pool changed")
        await logs.until("no pod is an endpoint")
    logged = [each for each in logs.entries if each["event"] == "no pod is an endpoint"]
    assert [(each["reason"], each["selector"], each["pods"]) for each in logged] == [
        ("no pod has these labels", "app=vllm", 0),
        ("pods have these labels, but none is ready", "app=vllm", 1),
        ("the active-ports annotation of the ready pods names none of these ports", "app=vllm", 2),
        ("no pod has these labels", "app=vlm", 0),
    ]
    assert {(each["namespace"], each["ports"]) for each in logged} == {("d", (8000,))}


async def _until_seen(api: FakeApi, discovery: KubernetesDiscovery) -> None:
    """Wait until the discovery has seen a pod that is no endpoint, and all changes before."""
    api.create(PODS, "last", labels=VLLM, status=status(99, ready=False))
    assert discovery._pods is not None
    reflector = discovery._pods.reflector
    assert reflector is not None
    while ("d", "last") not in reflector.objects:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)


# Pools


async def test_other_labels_of_the_pool_select_other_pods_and_the_last_ones_stay_until_then(
    api: FakeApi, discover: Discover
) -> None:
    api.faults.watch_list = "refused"
    create_pool(api)
    create_pods(api, 1)
    create_pods(api, 2, labels={"app": "new"})
    async with discover() as (_, sink):
        await sink.until("10.0.0.1:8000")
        api.faults.lists_wait_for = asyncio.Event()
        before = len(of_pods(api))
        api.update(POOL, "pool", spec=spec_of({"app": "new"}, 9000))
        await api.until(lambda: any("=new" in str(each.query) for each in of_pods(api)[before:]))
        assert len(sink.reports) == 1
        api.faults.lists_wait_for.set()
        await sink.until("10.0.0.2:9000")
        assert len(sink.reports) == 2
        create_pods(api, 3, labels={"app": "new"})
        await sink.until("10.0.0.2:9000", "10.0.0.3:9000")
        assert all("vllm" not in str(each.query) for each in of_pods(api)[before + 1 :])


async def test_other_ports_of_the_pool_apply_without_reading_the_pods_again(
    api: FakeApi, discover: Discover
) -> None:
    create_pool(api, VLLM, 8000, 8001)
    create_pods(api, 1)
    async with discover() as (_, sink):
        await sink.until("10.0.0.1:8000", "10.0.0.1:8001")
        before = len(of_pods(api))
        api.update(POOL, "pool", spec=spec_of(VLLM, 8001, 8000))
        await sink.until_true(lambda: len(sink.reports) == 2)
        assert [(each.name, each.address) for each in sink.reports[-1]] == [
            ("d/p1-rank-0", "10.0.0.1:8001"),
            ("d/p1-rank-1", "10.0.0.1:8000"),
        ]
        api.update(POOL, "pool", spec=spec_of(VLLM, 9000))
        await sink.until("10.0.0.1:9000")
        assert len(of_pods(api)) == before


async def test_the_pool_may_change_while_its_pods_are_still_being_read(
    api: FakeApi, discover: Discover
) -> None:
    api.faults.watch_list = "refused"
    create_pool(api)
    create_pods(api, 1)
    async with discover() as (_, sink):
        await sink.until("10.0.0.1:8000")
        api.faults.lists_wait_for = asyncio.Event()
        for labels, port in (({"app": "new"}, 8000), (VLLM, 8000), (VLLM, 9000)):
            before = len(api.requests)
            api.update(POOL, "pool", spec=spec_of(labels, port))
            if port == 8000:
                await api.until(partial(_asks_for, api, before, labels))
        create_pods(api, 2)
        api.faults.lists_wait_for.set()
        await sink.until("10.0.0.1:9000", "10.0.0.2:9000")
        assert all(spec.address.endswith(":9000") for spec in sink.reports[1])


def _asks_for(api: FakeApi, first: int, labels: dict[str, str]) -> bool:
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    return any(each.query.get("labelSelector") == selector for each in api.requests[first:])


async def test_of_a_pool_only_labels_and_ports_matter(api: FakeApi, discover: Discover) -> None:
    create_pool(api)
    create_pods(api, 1)
    async with discover() as (discovery, sink):
        await sink.until("10.0.0.1:8000")
        spec = spec_of(VLLM, 8000) | {"appProtocol": "kubernetes.io/h2c"}
        api.update(POOL, "pool", spec=spec)
        create_pods(api, 2)
        await sink.until("10.0.0.1:8000", "10.0.0.2:8000")
        assert len(sink.reports) == 2
        assert discovery.pool is not None
        assert discovery.pool.app_protocol == "kubernetes.io/h2c"


@pytest.mark.parametrize("way", ["deleted", "being deleted"])
async def test_with_the_pool_its_endpoints_go_and_come_back(
    api: FakeApi, discover: Discover, way: str, logs: Logs
) -> None:
    create_pool(api)
    create_pods(api, 1)
    async with discover() as (discovery, sink):
        await sink.until("10.0.0.1:8000")
        if way == "being deleted":
            patch = {"metadata": {"deletionTimestamp": "2026-11-24T00:00:00Z"}}
            api.state.patch(POOL, ("d", "pool"), patch)
            await sink.until()
        api.delete(POOL, "pool")
        await sink.until()
        assert not discovery.is_pool_known
        await api.until(lambda: api.watches == 1)  # that of the pools
        create_pods(api, 2)
        create_pool(api)
        await sink.until("10.0.0.1:8000", "10.0.0.2:8000")
        assert discovery.is_pool_known
    events = [each["event"] for each in logs.entries if "pool" in each["event"]]
    assert events[:2] == ["pool found", "the pool is gone, and so are its endpoints"]
    assert events[-1] == "pool found"


async def test_a_pool_that_does_not_exist_is_awaited(
    api: FakeApi, discover: Discover, logs: Logs
) -> None:
    create_pods(api, 1)
    async with discover() as (discovery, sink):
        await logs.until("there is no pool of this name; waiting for it")
        assert not discovery.is_pool_known
        assert of_pods(api) == []
        create_pool(api)
        await sink.until("10.0.0.1:8000")


async def test_a_kind_of_pools_that_is_not_installed_is_a_warning_with_what_to_do(
    api: FakeApi, tmp_path: Path, logs: Logs
) -> None:
    api.serve(POOL)
    async with discovering(api, tmp_path, OF_FORMER_POOL):
        await logs.until("there is no pool of this name; waiting for it")
    (entry,) = [each for each in logs.entries if "does not have a kind" in each["event"]]
    assert (entry["log_level"], entry["api_version"]) == (
        "warning",
        "inference.networking.x-k8s.io/v1alpha2",
    )
    assert entry["remedy"].startswith("no pool can be found: install the CRDs")


async def test_a_replica_that_is_to_know_nothing_reports_nothing_until_it_is(
    api: FakeApi, discover: Discover
) -> None:
    api.serve(OBJECTIVES[0])
    api.create(OBJECTIVES[0], "batch", spec={"poolRef": {"name": "pool"}, "priority": -1})
    create_pool(api)
    create_pods(api, 1)
    store = ObjectStore(pool_name="pool", rng=Random(0))
    knows = False
    async with discover(policies=store, is_populated=lambda: knows) as (discovery, sink):
        await sink.until()
        await api.until(lambda: api.watches == 3)
        create_pods(api, 2)
        await sink.until_true(lambda: len(sink.reports) == 2)
        assert sink.addresses == []
        assert store.priority_of("batch") == 0
        assert discovery.is_pool_known
        knows = True
        discovery.populate()
        assert sink.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert store.priority_of("batch") == -1
        reports = len(sink.reports)
        discovery.populate()
        assert len(sink.reports) == reports
        knows = False
        discovery.populate()
        assert (sink.addresses, store.priority_of("batch")) == ([], 0)


async def test_another_pool_of_the_namespace_does_not_count(
    api: FakeApi, discover: Discover, logs: Logs
) -> None:
    api.create(POOL, "other", spec=spec_of(VLLM, 8000))
    api.create(POOL, "pool", namespace="elsewhere", spec=spec_of(VLLM, 8000))
    async with discover() as (discovery, _):
        await logs.until("there is no pool of this name; waiting for it")
        assert discovery.pool is None


async def test_a_pool_of_the_former_group_counts_before_that_of_the_new_one(
    api: FakeApi, discover: Discover
) -> None:
    create_pods(api, 1)
    async with discover(OF_FORMER_POOL) as (discovery, sink):
        create_pool(api, VLLM, 8000)
        await sink.until("10.0.0.1:8000")  # the reference reads no other
        create_former_pool(api, 9000)
        await sink.until("10.0.0.1:9000")
        api.delete(FORMER_POOL, "pool")
        await sink.until("10.0.0.1:8000")
        api.delete(POOL, "pool")
        await sink.until()
        assert not discovery.is_pool_known


async def test_pools_of_the_former_group_are_not_read_unless_it_is_named(
    api: FakeApi, discover: Discover, logs: Logs
) -> None:
    create_former_pool(api, 8000)
    async with discover() as (discovery, _):
        await logs.until("there is no pool of this name; waiting for it")
        assert discovery.pool is None
    assert not [each for each in api.requests if FORMER_POOL_GROUP in each.path]


async def test_with_a_group_that_has_no_pools_that_of_the_new_one_is_read(
    api: FakeApi, discover: Discover
) -> None:
    create_pool(api)
    create_pods(api, 1)
    async with discover(PodSource("d", PoolRef("pool", "example.com"))) as (_, sink):
        await sink.until("10.0.0.1:8000")


# Labels instead of a pool


async def test_a_fixed_selection_reads_pods_and_nothing_else(
    api: FakeApi, discover: Discover
) -> None:
    create_pods(api, 1, labels=VLLM | {"tier": "x"})
    create_pods(api, 2)
    selection = PodSelection("app in (vllm),tier", (8000, 8001))
    store = ObjectStore(pool_name="epp", rng=Random(0))
    async with discover(PodSource("d", selection=selection), store) as (discovery, sink):
        assert discovery.is_pool_known
        await sink.until("10.0.0.1:8000", "10.0.0.1:8001")
        api.update(PODS, "p2", labels=VLLM | {"tier": "y"})
        await sink.until("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001")
    assert {each.path for each in api.requests} == {"/api/v1/namespaces/d/pods"}


# What may not be read


def deny(api: FakeApi, plural: str) -> None:
    api.faults.denied |= {("list", plural), ("watch", plural)}


async def test_without_the_right_to_read_pods_the_log_names_it(
    api: FakeApi, discover: Discover, logs: Logs
) -> None:
    deny(api, "pods")
    create_pool(api)
    async with discover() as (discovery, sink):
        await logs.until('apiGroups: [""], resources: ["pods"], verbs: ["watch"]')
        assert discovery.is_pool_known
        assert sink.reports == []
        fault = discovery.statuses()["pods"].fault
        assert str(fault).startswith("cannot watch pods in namespace d: 403 Forbidden")


async def test_without_the_right_to_read_pools_the_log_names_it(
    api: FakeApi, discover: Discover, logs: Logs
) -> None:
    deny(api, "inferencepools")
    create_pool(api)
    async with discover() as (discovery, _):
        await logs.until('resources: ["inferencepools"], verbs: ["watch"]')
        assert not discovery.is_pool_known


async def test_without_the_right_to_read_pools_of_one_group_those_of_the_other_work(
    api: FakeApi, discover: Discover, logs: Logs
) -> None:
    api.faults.denied_groups.add(POOL_GROUP)
    create_former_pool(api, 8000)
    create_pods(api, 1)
    async with discover(OF_FORMER_POOL) as (discovery, sink):
        await sink.until("10.0.0.1:8000")
        await logs.until(f'apiGroups: ["{POOL_GROUP}"], resources: ["inferencepools"]')
        api.delete(FORMER_POOL, "pool")
        await sink.until()
        assert not discovery.is_pool_known


@pytest.mark.parametrize("plural", ["inferenceobjectives", "inferencemodelrewrites"])
async def test_without_the_right_to_read_policies_endpoints_are_reported(
    api: FakeApi, discover: Discover, logs: Logs, plural: str
) -> None:
    api.serve(OBJECTIVES[0])
    api.serve(REWRITES[0])
    deny(api, plural)
    create_pool(api)
    create_pods(api, 1)
    store = ObjectStore(pool_name="pool", rng=Random(0))
    async with discover(policies=store) as (_, sink):
        await sink.until("10.0.0.1:8000")
        await logs.until(f'apiGroups: ["llm-d.ai"], resources: ["{plural}"], verbs: ["watch"]')


# The API server


async def test_while_the_server_is_away_the_last_endpoints_stay(
    api: FakeApi, discover: Discover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "next_seconds", lambda *_: 0.01)
    create_pool(api)
    create_pods(api, 1)
    async with discover() as (discovery, sink):
        await sink.until("10.0.0.1:8000")
        api.faults.raw = b"HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n"
        before = len(of_pods(api))
        api.cut_watches()
        await api.until(lambda: len(of_pods(api)) > before)
        assert len(sink.reports) == 1
        assert discovery.is_pool_known
        api.delete(PODS, "p1")
        create_pods(api, 2)
        api.faults.raw = None
        await sink.until("10.0.0.2:8000")
        assert discovery.statuses()["pods"].fault is None


async def test_without_a_configuration_of_a_client_it_cannot_start() -> None:
    def fail() -> Connection:
        raise ConfigurationError("no configuration of a Kubernetes client found")

    discovery = KubernetesDiscovery(OF_POOL, client=SharedClient(fail))
    with pytest.raises(DiscoveryError, match="no configuration of a Kubernetes client found"):
        await discovery.run(Sink())


@pytest.mark.parametrize("seed", range(5))
async def test_any_changes_end_in_the_endpoints_of_the_present_state(
    api: FakeApi, discover: Discover, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(Backoff, "next_seconds", lambda *_: 0.01)
    rng = Random(seed)
    create_pool(api)
    async with discover() as (_, sink):
        await sink.until()
        for _step in range(150):
            _change_something(api, rng)
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        await sink.until(*_present_addresses(api))


def _change_something(api: FakeApi, rng: Random) -> None:
    """Change a pod, the pool or the connections."""
    labels = {"app": rng.choice(["vllm", "new"])}
    name, number = f"p{rng.randrange(6)}", rng.randrange(100)
    pods = {each["metadata"]["name"] for each in api.state.select(PODS, lambda _: True)}
    pools = api.state.select(POOL, lambda _: True)
    pool_spec = spec_of(labels, *rng.sample([8000, 8001, 8002], rng.randint(1, 3)))
    pod_status = status(number, ready=rng.random() < 0.7)
    what = rng.random()
    if what < 0.75:
        if name not in pods:
            api.create(PODS, name, labels=labels, status=pod_status)
        elif rng.random() < 0.3:
            api.delete(PODS, name)
        else:
            api.update(PODS, name, labels=labels, status=pod_status)
    elif what < 0.9:
        if not pools:
            api.create(POOL, "pool", spec=pool_spec)
        elif rng.random() < 0.3:
            api.delete(POOL, "pool")
        else:
            api.update(POOL, "pool", spec=pool_spec)
    else:
        api.cut_watches()
        if rng.random() < 0.5:
            api.state.compact()


def _present_addresses(api: FakeApi) -> list[str]:
    """Return the addresses of the endpoints, from the state of the server."""
    return [
        f"{pod['status']['podIP']}:{port['number']}"
        for pool in api.state.select(POOL, lambda _: True)
        for pod in api.state.select(PODS, lambda _: True)
        for port in pool["spec"]["targetPorts"]
        if pod["metadata"]["labels"] == pool["spec"]["selector"]["matchLabels"]
        and pod["status"]["conditions"][0]["status"] == "True"
    ]
