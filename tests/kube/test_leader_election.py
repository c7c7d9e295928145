"""Leader election on a real API server, with the rights that the llm-d charts grant."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import httpx
import httpx2
import pytest
from kube.lease_history import holders, lease_history, leases, seconds_until_taken

from epp.kubernetes.api import ApiClient, ApiError, UnreachableError, load_connection
from epp.kubernetes.leader_election import Elector, make_identity
from epp.kubernetes.lease import LEASE_SECONDS
from tools.harness.gateway import until
from tools.harness.kube.access import LEADER_ELECTION_RULES, PICKER_RULES, create_account
from tools.harness.kube.crds import Document
from tools.harness.kube.objects import MERGE_PATCH, Namespace, checked
from tools.harness.kube.server import ApiServer

NAME: Final = "epp-d-p.llm-d.ai"
SLOWNESS_SECONDS: Final = 5.0
"""What a busy machine may add to a limit."""


class Replica:
    """An elector with connections of its own."""

    def __init__(self, client: ApiClient, namespace: str, news: asyncio.Event) -> None:
        self.elector = Elector(client, namespace, NAME, make_identity(), changed=self._note)
        self.gains: list[float] = []
        """When it began to lead."""
        self.losses: list[float] = []
        """When it stopped leading."""
        self._client = client
        self._news = news
        self._task = asyncio.create_task(self.elector.run())

    @property
    def leads(self) -> bool:
        return self.elector.is_leader

    @property
    def identity(self) -> str:
        return self.elector.identity

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def kill(self) -> None:
        """End it without a release."""
        await self._client.close()
        self._client._http._newest.http = httpx2.AsyncClient(
            transport=httpx2.MockTransport(_refuse)
        )
        await self.stop()

    def _note(self) -> None:
        if self.leads and len(self.gains) == len(self.losses):
            self.gains.append(time.monotonic())
        elif not self.leads and len(self.gains) > len(self.losses):
            self.losses.append(time.monotonic())
        self._news.set()


def _refuse(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("killed")


class Cluster:
    """Replicas with one account."""

    def __init__(self, kubeconfig: Path, namespace: Namespace, stack: AsyncExitStack) -> None:
        self.news = asyncio.Event()
        self.path = leases(namespace)
        self.namespace = namespace
        self._kubeconfig = kubeconfig
        self._stack = stack

    async def start(self) -> Replica:
        environ = {"KUBECONFIG": str(self._kubeconfig)}
        connection = await asyncio.to_thread(load_connection, environ)
        client = await self._stack.enter_async_context(ApiClient(connection))
        replica = Replica(client, self.namespace.name, self.news)
        self._stack.push_async_callback(replica.stop)
        return replica

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds``; it is asked at each change of leadership."""
        while not holds():
            self.news.clear()
            await self.news.wait()

    async def lease(self) -> Document:
        return checked(await self.namespace.admin.get(f"{self.path}/{NAME}"))

    async def announced(self) -> set[str]:
        """Return the messages of the events about leaders."""
        events = await self.namespace.list("events")
        return {each["message"] for each in events["items"] if each["reason"] == "LeaderElection"}

    def history(self) -> AbstractAsyncContextManager[list[Document]]:
        """Watch the Lease; give its specs as they come."""
        return lease_history(self.namespace, NAME, self.news)


@pytest.fixture
async def cluster(
    api_server: ApiServer, namespace: Namespace, tmp_path: Path
) -> AsyncIterator[Cluster]:
    account = await create_account(namespace, "epp", (*PICKER_RULES, *LEADER_ELECTION_RULES))
    token = api_server.tokens.issue(account)
    api_server.write_kubeconfig(tmp_path / "config", namespace.name, token=token)
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path / "config", namespace, stack)


async def test_a_released_lease_is_taken_at_once(cluster: Cluster) -> None:
    async with cluster.history() as specs:
        a = await cluster.start()
        await cluster.until(lambda: a.leads)
        b = await cluster.start()
        await cluster.until(lambda: b.elector.leader == a.identity)
        # Before its end, which would cut the event short.
        while f"{a.identity} became leader" not in await cluster.announced():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        stopping = time.monotonic()
        await a.stop()
        await cluster.until(lambda: b.leads)
        assert a.losses[0] < b.gains[0] <= stopping + 2 + SLOWNESS_SECONDS
    assert holders(specs) == [a.identity, "", b.identity]
    assert b.elector.status.fault is None


async def test_the_lease_of_a_killed_leader_is_taken_when_it_has_expired(
    cluster: Cluster,
) -> None:
    async with cluster.history() as specs:
        a = await cluster.start()
        await cluster.until(lambda: a.leads)
        b, c = await cluster.start(), await cluster.start()
        await cluster.until(lambda: b.elector.leader == c.elector.leader == a.identity)
        await a.kill()
        await cluster.until(lambda: b.leads or c.leads)
        winner, loser = (b, c) if b.leads else (c, b)
        assert winner.gains[0] - a.losses[0] <= 17 + SLOWNESS_SECONDS
        await cluster.until(lambda: loser.elector.leader == winner.identity)
        assert loser.gains == []
    assert holders(specs) == [a.identity, winner.identity]
    assert seconds_until_taken(specs) >= LEASE_SECONDS


async def test_without_a_server_nobody_leads_until_it_is_back(
    cluster: Cluster, api_server: ApiServer
) -> None:
    a = await cluster.start()
    await cluster.until(lambda: a.leads)
    b = await cluster.start()
    await cluster.until(lambda: b.elector.leader == a.identity)
    await asyncio.to_thread(api_server.kill)
    killed = time.monotonic()
    await cluster.until(lambda: not a.leads)
    assert a.losses[0] - killed <= 10 + SLOWNESS_SECONDS
    assert isinstance(a.elector.status.fault, UnreachableError)
    assert not b.leads
    await asyncio.to_thread(api_server.start)
    await cluster.until(lambda: a.leads or b.leads)
    assert not (a.leads and b.leads)
    leader = a if a.leads else b
    spec = (await cluster.lease())["spec"]
    assert spec["holderIdentity"] == leader.identity
    assert spec["leaseTransitions"] == int(leader is b)
    assert leader.elector.status.fault is None


async def test_what_others_write_into_the_lease_is_kept_and_a_deleted_one_is_made_anew(
    cluster: Cluster,
) -> None:
    admin, path = cluster.namespace.admin, f"{cluster.path}/{NAME}"
    a = await cluster.start()
    await cluster.until(lambda: a.leads)
    label = {"metadata": {"labels": {"app": "epp"}}}
    labelled = checked(await admin.patch(path, json=label, headers=MERGE_PATCH))
    async with cluster.history() as specs:
        renewals = {labelled["spec"]["renewTime"]}
        await cluster.until(lambda: len(renewals | {each["renewTime"] for each in specs}) >= 3)
    renewed = await cluster.lease()
    assert renewed["metadata"]["labels"] == {"app": "epp"}
    assert renewed["metadata"]["uid"] == labelled["metadata"]["uid"]
    assert a.losses == []
    checked(await admin.delete(path))
    await cluster.until(lambda: len(a.gains) == 2)
    assert (await cluster.lease())["metadata"]["uid"] != labelled["metadata"]["uid"]


async def test_without_the_rights_it_says_what_is_missing(
    api_server: ApiServer, namespace: Namespace, tmp_path: Path
) -> None:
    account = await create_account(namespace, "epp", PICKER_RULES)
    token = api_server.tokens.issue(account)
    api_server.write_kubeconfig(tmp_path / "config", namespace.name, token=token)
    environ = {"KUBECONFIG": str(tmp_path / "config")}
    connection = await asyncio.to_thread(load_connection, environ)
    async with ApiClient(connection) as client:
        elector = Elector(client, namespace.name, NAME, make_identity(), changed=lambda: None)
        running = asyncio.create_task(elector.run())
        await until(lambda: elector.status.fault is not None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    fault = elector.status.fault
    assert isinstance(fault, ApiError)
    assert fault.status == httpx.codes.FORBIDDEN
    assert 'resources: ["leases"], verbs: ["get"]' in str(fault)
