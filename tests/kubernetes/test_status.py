"""The status of the copies of the cluster's objects, as operators see it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from log_watch import Logs
from prometheus_client import CollectorRegistry

from epp.kubernetes.api import ApiClient
from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.leader_election import Elector
from epp.kubernetes.source import POOL_GROUP, PodSelection, PodSource
from epp.kubernetes.status import CopyLine, KubernetesStatus

from .conftest import connect
from .discoveries import OF_POOL, POOL, create_pool, discovering, of_pods
from .fake_api import LEASES, FakeApi

OF_LABELS = PodSource("d", selection=PodSelection("app=vllm", (8000,)))


@asynccontextmanager
async def following(api: FakeApi, folder: Path) -> AsyncIterator[KubernetesDiscovery]:
    """Run the discovery of a pool; yield it after its first report."""
    api.serve(POOL)
    create_pool(api)
    async with discovering(api, folder) as (discovery, sink):
        await sink.until_true(lambda: sink.addresses is not None)
        yield discovery


@asynccontextmanager
async def electing(
    api: FakeApi, folder: Path, changed: Callable[[], None] = lambda: None
) -> AsyncIterator[KubernetesStatus]:
    """Take part in an election; yield the status before the first call."""
    connection = await asyncio.to_thread(connect, folder, api.url)
    async with ApiClient(connection) as client:
        elector = Elector(client, "d", "l", "me", changed=changed)
        election = asyncio.create_task(elector.run())
        try:
            discovery = KubernetesDiscovery(OF_POOL)
            yield KubernetesStatus(
                "d", lambda: [discovery], lambda: 0.0, lease="l", elector=lambda: elector
            )
        finally:
            election.cancel()
            await asyncio.wait([election])


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
    status = KubernetesStatus("d", lambda: [KubernetesDiscovery(OF_POOL)], lambda: 0.0)
    page = status.page()
    assert (page.namespace, page.pool, page.is_pool_known) == ("d", "pool", False)
    assert (page.copies, page.lease, page.leader, page.is_leader) == ([], "", "", False)
    assert samples(status) == {}


def test_a_selection_of_pods_has_no_pool_and_is_known() -> None:
    page = KubernetesStatus("d", lambda: [KubernetesDiscovery(OF_LABELS)], lambda: 0.0).page()
    assert (page.pool, page.is_pool_known) == ("", True)


async def test_current_copies_have_an_age_and_no_fault(api: FakeApi, tmp_path: Path) -> None:
    async with following(api, tmp_path) as discovery:
        contact = discovery.statuses()["pods"].last_contact
        assert contact is not None
        now = contact + 7.0
        status = KubernetesStatus("d", lambda: [discovery], lambda: now)
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
    async with following(api, tmp_path) as discovery:
        await api.until(lambda: any(each.is_watch for each in of_pods(api)))
        api.faults.denied = {("watch", "pods"), ("list", "pods")}
        api.cut_watches()
        await logs.until("objects not followed")
        status = KubernetesStatus("d", lambda: [discovery], lambda: 0.0)
        line = copy_of(status, "pods")
        assert "403" in line.fault
        assert "pods" in line.fault
        assert line.synced  # the last copy stays
        assert samples(status)["llm_d_epp_kubernetes_faulty", "pods"] == 1


async def test_the_leader_is_named(api: FakeApi, tmp_path: Path) -> None:
    led = asyncio.Event()
    async with electing(api, tmp_path, led.set) as status:
        assert samples(status) == {("leader_election_master_status", "l"): 0}
        await led.wait()
        page = status.page()
        assert (page.lease, page.leader, page.is_leader) == ("l", "me", True)
        assert page.lease_fault == ""
        assert samples(status) == {("leader_election_master_status", "l"): 1}


async def test_a_lease_that_cannot_be_read_says_why(
    api: FakeApi, tmp_path: Path, logs: Logs
) -> None:
    api.faults.denied = {("get", LEASES.plural)}
    async with electing(api, tmp_path) as status:
        await logs.until("lease not reached")
        page = status.page()
        assert "403" in page.lease_fault
        assert (page.leader, page.is_leader) == ("", False)
