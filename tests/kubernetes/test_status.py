"""What operators see of the copies of the cluster's objects."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from log_watch import Logs
from prometheus_client import CollectorRegistry

from epp.data_layer import EndpointSpec
from epp.kubernetes.api import ApiClient
from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.leader_election import Elector
from epp.kubernetes.pools import POOLS
from epp.kubernetes.source import POOL_GROUP, PodSelection, PodSource, PoolRef
from epp.kubernetes.status import CopyLine, KubernetesStatus

from .conftest import connect
from .fake_api import LEASES, PODS, FakeApi, Request

POOL = POOLS[POOL_GROUP][0]
OF_POOL = PodSource("d", PoolRef("pool"))
OF_LABELS = PodSource("d", selection=PodSelection("app=vllm", (8000,)))


class Sink:
    """Says when endpoints have been reported."""

    def __init__(self) -> None:
        self.reported = asyncio.Event()

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        self.reported.set()


@asynccontextmanager
async def following(
    api: FakeApi, folder: Path, source: PodSource = OF_POOL
) -> AsyncIterator[KubernetesDiscovery]:
    """Run a discovery; yield it after its first report."""
    discovery = KubernetesDiscovery(source, connect=lambda: connect(folder, api.url))
    sink = Sink()
    task = asyncio.create_task(discovery.run(sink))
    try:
        await sink.reported.wait()
        yield discovery
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def create_pool(api: FakeApi) -> None:
    api.serve(POOL)
    spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]}
    api.create(POOL, "pool", spec=spec)


def copy_of(status: KubernetesStatus, resource: str) -> CopyLine:
    (line,) = (each for each in status.page().copies if each.resource == resource)
    return line


def samples(status: KubernetesStatus) -> dict[tuple[str, str], float]:
    """Return the values by metric and by the value of its one label."""
    registry = CollectorRegistry()
    registry.register(status)
    return {
        (sample.name, *sample.labels.values()): sample.value  # type: ignore[misc] # one label
        for metric in registry.collect()
        for sample in metric.samples
    }


def test_before_the_start_nothing_is_known() -> None:
    status = KubernetesStatus(KubernetesDiscovery(OF_POOL), lambda: 0.0)
    page = status.page()
    assert (page.namespace, page.pool, page.is_pool_known) == ("d", "pool", False)
    assert (page.copies, page.lease, page.leader, page.is_leader) == ([], "", "", False)
    assert samples(status) == {}


def test_a_selection_of_pods_has_no_pool_and_is_known() -> None:
    page = KubernetesStatus(KubernetesDiscovery(OF_LABELS), lambda: 0.0).page()
    assert (page.pool, page.is_pool_known) == ("", True)


async def test_current_copies_have_an_age_and_no_fault(api: FakeApi, tmp_path: Path) -> None:
    create_pool(api)
    async with following(api, tmp_path) as discovery:
        contact = discovery.statuses()["pods"].last_contact
        assert contact is not None
        now = contact + 7.0
        status = KubernetesStatus(discovery, lambda: now)
        assert status.page().is_pool_known
        assert copy_of(status, "pods") == CopyLine(
            resource="pods",
            synced=True,
            contact_age_seconds=now - contact,
            fault="",
            relists=0,
            undecodable=0,
        )
        values = samples(status)
        assert values["llm_d_epp_kubernetes_synced", "pods"] == 1
        assert values["llm_d_epp_kubernetes_faulty", "pods"] == 0
        assert values["llm_d_epp_kubernetes_relists_total", "pods"] == 0
        assert values["llm_d_epp_kubernetes_contact_age_seconds", "pods"] == now - contact
        assert values["llm_d_epp_kubernetes_synced", f"inferencepools.{POOL_GROUP}"] == 1


async def test_a_copy_that_cannot_be_kept_current_says_why(
    api: FakeApi, tmp_path: Path, logs: Logs
) -> None:
    create_pool(api)
    async with following(api, tmp_path) as discovery:
        await api.until(lambda: any(each.is_watch and _is_of_pods(each) for each in api.requests))
        api.faults.denied = {("watch", "pods"), ("list", "pods")}
        api.cut_watches()
        await logs.until("objects not followed")
        status = KubernetesStatus(discovery, lambda: 0.0)
        line = copy_of(status, "pods")
        assert "403" in line.fault
        assert "pods" in line.fault
        assert line.synced  # the last copy stays
        assert samples(status)["llm_d_epp_kubernetes_faulty", "pods"] == 1


def _is_of_pods(request: Request) -> bool:
    return request.path.endswith(f"/{PODS.plural}")


async def test_the_leader_is_named(api: FakeApi, tmp_path: Path) -> None:
    connection = await asyncio.to_thread(connect, tmp_path, api.url)
    led = asyncio.Event()
    async with ApiClient(connection) as client:
        elector = Elector(client, "d", "l", "me", changed=led.set)
        status = KubernetesStatus(
            KubernetesDiscovery(OF_POOL), lambda: 0.0, lease="l", elector=lambda: elector
        )
        assert samples(status) == {("leader_election_master_status", "l"): 0}
        election = asyncio.create_task(elector.run())
        try:
            await led.wait()
            page = status.page()
            assert (page.lease, page.leader, page.is_leader) == ("l", "me", True)
            assert page.lease_fault == ""
            assert samples(status) == {("leader_election_master_status", "l"): 1}
        finally:
            election.cancel()
            await asyncio.wait([election])


async def test_a_lease_that_cannot_be_read_says_why(
    api: FakeApi, tmp_path: Path, logs: Logs
) -> None:
    api.faults.denied = {("get", LEASES.plural)}
    connection = await asyncio.to_thread(connect, tmp_path, api.url)
    async with ApiClient(connection) as client:
        elector = Elector(client, "d", "l", "me", changed=lambda: None)
        status = KubernetesStatus(
            KubernetesDiscovery(OF_POOL), lambda: 0.0, lease="l", elector=lambda: elector
        )
        election = asyncio.create_task(elector.run())
        try:
            await logs.until("lease not reached")
            page = status.page()
            assert "403" in page.lease_fault
            assert (page.leader, page.is_leader) == ("", False)
        finally:
            election.cancel()
            await asyncio.wait([election])
