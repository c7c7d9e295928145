"""The rate, delay and author of status writes; time is virtual."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from epp.kubernetes.api import Connection
from epp.kubernetes.conditions import Condition, ObjectStatus
from epp.kubernetes.status_writer import AGAIN_SECONDS, SPREAD_SECONDS, StatusWriter

from .conftest import connect
from .fake_api import CONFIG_MAPS, GADGETS, FakeApi, Request
from .fake_state import Json, RefusedError
from .links import Link

pytestmark = pytest.mark.looptime

HOUR = 3600.0


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Connection:
    return connect(tmp_path_factory.mktemp("kube"), "http://replaced")


def now() -> float:
    return asyncio.get_running_loop().time()


class Replica:
    """A writer with a network of its own, that sees each change after 20 ms."""

    def __init__(self, api: FakeApi, connection: Connection, seed: int, message: str) -> None:
        self.may_write = True
        self.sees_after = 0.02
        self.message = message
        """The message that it writes."""
        self.wall_offset = 0.0
        self.link = Link(api, connection)
        loop = asyncio.get_running_loop()
        self.writer = StatusWriter(
            lambda: self.may_write,
            clock=loop.time,
            wall_clock=lambda: 1_800_000_000.0 + loop.time() + self.wall_offset,
            rng=random.Random(seed),
        )
        self._api = api
        api.state.listeners.append(lambda _: self.look())
        self.look()
        self._task = asyncio.create_task(self.writer.run(self.link.client))

    def look(self) -> None:
        """See the objects as they are now, a little later."""
        statuses = list(self._statuses())
        asyncio.get_running_loop().call_later(self.sees_after, self.writer.submit, "pool", statuses)

    async def stop(self) -> None:
        assert not self._task.done()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _statuses(self) -> Iterator[ObjectStatus]:
        wanted = Condition("Accepted", True, "Accepted", self.message)
        for resource in (GADGETS, CONFIG_MAPS):
            for each in self._api.state.select(resource, lambda _: True):
                meta = each["metadata"]
                yield ObjectStatus(
                    resource=resource,
                    namespace=meta["namespace"],
                    name=meta["name"],
                    uid=meta["uid"],
                    resource_version=meta["resourceVersion"],
                    generation=meta.get("generation", 0),
                    wanted=(wanted,),
                    found=each.get("status"),
                )


class TimedApi(FakeApi):
    """Notes when each write came."""

    def __init__(self) -> None:
        super().__init__([GADGETS, CONFIG_MAPS])
        self.state.has_status.add(GADGETS)
        self.times: list[float] = []

    def call(self, request: Request) -> tuple[int, Json]:
        self.times.append(now())
        return super().call(request)


class Cluster:
    """An API server with gadgets, and replicas that write their status."""

    def __init__(self, connection: Connection) -> None:
        self.api = TimedApi()
        self.attempts = self.api.times
        self.replicas: list[Replica] = []
        self._connection = connection

    def start(self, message: str = "in use") -> Replica:
        replica = Replica(self.api, self._connection, len(self.replicas), message)
        self.replicas.append(replica)
        return replica

    def create(self, *names: str) -> None:
        for name in names:
            self.api.create(GADGETS, name, spec={"size": 1})

    def messages(self) -> list[str]:
        """Return the messages of all gadgets with a status."""
        return [
            each["status"]["conditions"][0]["message"]
            for each in self.api.state.select(GADGETS, lambda _: True)
            if "status" in each
        ]

    def changes(self) -> Counter[str]:
        """Return how often each gadget has changed after it was created."""
        return Counter(
            each.after["metadata"]["name"]
            for each in self.api.state.history
            if each.before is not None and each.after is not None
        )


@pytest.fixture
async def cluster(connection: Connection) -> AsyncIterator[Cluster]:
    made = Cluster(connection)
    yield made
    for each in made.replicas:
        await each.stop()


def names(count: int) -> list[str]:
    return [f"g{number}" for number in range(count)]


def lines(logs: Sequence[Mapping[str, object]]) -> list[object]:
    return [each["event"] for each in logs]


async def test_a_status_is_written_once(cluster: Cluster) -> None:
    cluster.create("a")
    cluster.start()
    await asyncio.sleep(SPREAD_SECONDS[1] + 0.1)
    assert cluster.messages() == ["in use"]
    request = json.loads(cluster.api.requests[-1].body)
    assert request["status"]["conditions"][0]["observedGeneration"] == 1
    await asyncio.sleep(HOUR)
    assert len(cluster.attempts) == 1


async def test_a_change_of_what_it_shall_say_is_written_soon(cluster: Cluster) -> None:
    cluster.create("a")
    replica = cluster.start()
    await asyncio.sleep(5)
    replica.message = "in use, partly"
    replica.look()
    await asyncio.sleep(SPREAD_SECONDS[1] + 0.1)
    assert cluster.messages() == ["in use, partly"]
    cluster.api.update(GADGETS, "a", spec={"size": 2})  # another generation
    await asyncio.sleep(SPREAD_SECONDS[1] + 0.1)
    assert len(cluster.attempts) == 3


@pytest.mark.parametrize("hours", [1, -1])
async def test_clocks_may_jump(cluster: Cluster, hours: int) -> None:
    cluster.create("a")
    replica = cluster.start()
    await asyncio.sleep(5)
    replica.wall_offset = hours * HOUR
    cluster.create("b")
    replica.look()
    await asyncio.sleep(HOUR)
    assert cluster.changes() == {"a": 1, "b": 1}
    assert len(cluster.attempts) == 2


async def test_an_object_made_anew_is_another_one(cluster: Cluster) -> None:
    cluster.create("a")
    cluster.start()
    await asyncio.sleep(5)
    cluster.api.delete(GADGETS, "a")
    cluster.create("a")
    await asyncio.sleep(SPREAD_SECONDS[1] + 0.1)
    assert cluster.messages() == ["in use"]


async def test_at_most_a_few_are_written_in_a_second(cluster: Cluster) -> None:
    cluster.create(*names(200))
    cluster.start()
    await asyncio.sleep(75)
    assert cluster.messages() == ["in use"] * 200
    assert min(later - earlier for earlier, later in pairwise(cluster.attempts)) >= 0.125
    assert 200 / (cluster.attempts[-1] - cluster.attempts[0]) < 5


async def test_several_replicas_write_each_status_once(cluster: Cluster) -> None:
    cluster.create(*names(60))
    for _ in range(3):
        cluster.start()
    await asyncio.sleep(60)
    assert cluster.messages() == ["in use"] * 60
    assert cluster.changes() == dict.fromkeys(names(60), 1)
    before = len(cluster.attempts)
    assert before <= 66  # a few meet at the same object
    cluster.create("late")
    await asyncio.sleep(60)
    assert cluster.changes()["late"] == 1
    assert len(cluster.attempts) - before <= 3


async def test_replicas_of_two_versions_do_not_write_in_turns(cluster: Cluster) -> None:
    cluster.create("a")
    cluster.start("in use")
    cluster.start("used")
    await asyncio.sleep(HOUR - 60)
    # Each once in ten minutes.
    assert 2 <= len(cluster.attempts) <= 12


async def test_a_status_that_somebody_changes_back_is_not_written_in_a_loop(
    cluster: Cluster,
) -> None:
    cluster.create("a")
    cluster.start()

    def change_back(_: object) -> None:
        body = cluster.api.state.get(GADGETS, ("d", "a"))
        if body["status"]["conditions"]:
            emptied = body | {"status": {"conditions": []}}
            cluster.api.state.replace(GADGETS, ("d", "a"), emptied, status=True)

    cluster.api.state.listeners.append(change_back)
    await asyncio.sleep(HOUR - 60)
    assert len(cluster.attempts) == 6
    assert min(later - earlier for earlier, later in pairwise(cluster.attempts)) >= AGAIN_SECONDS


async def test_a_conflict_is_tried_again_seldom_and_with_what_is_seen_then(
    cluster: Cluster,
) -> None:
    cluster.create("a")
    replica = cluster.start()
    replica.sees_after = 30.0
    cluster.api.update(GADGETS, "a", labels={"x": "1"})
    await asyncio.sleep(25)
    assert cluster.messages() == []
    assert len(cluster.attempts) > 3
    assert min(later - earlier for earlier, later in pairwise(cluster.attempts)) >= 1
    await asyncio.sleep(25)
    assert cluster.messages() == ["in use"]


async def test_a_missing_right_is_reported_once_and_tried_again_after_ten_minutes(
    cluster: Cluster,
) -> None:
    cluster.api.faults.denied = {("patch", "gadgets/status")}
    cluster.create(*names(20))
    with capture_logs() as logs:
        cluster.start()
        await asyncio.sleep(3 * AGAIN_SECONDS)
    (line,) = logs
    assert line["event"] == "status of objects is not written"
    assert 'resources: ["gadgets/status"], verbs: ["patch"]' in line["reason"]
    assert len(cluster.attempts) == 3
    cluster.api.faults.denied.clear()
    await asyncio.sleep(AGAIN_SECONDS + 20)
    assert len(cluster.messages()) == 20


async def test_a_kind_without_a_status_is_left_alone_quietly(cluster: Cluster) -> None:
    for name in ("server", "the", *names(20)):  # two words of the refusal
        cluster.api.create(CONFIG_MAPS, name)
    cluster.create("a")
    with capture_logs() as logs:
        cluster.start()
        await asyncio.sleep(AGAIN_SECONDS - 20)
    assert logs == []
    assert cluster.messages() == ["in use"]
    assert len(cluster.attempts) == 2


async def test_an_object_deleted_meanwhile_says_nothing_of_its_kind(cluster: Cluster) -> None:
    cluster.create("a", "b")
    replica = cluster.start()
    replica.sees_after = HOUR
    await asyncio.sleep(0.1)
    cluster.api.delete(GADGETS, "a")
    with capture_logs() as logs:
        await asyncio.sleep(60)
    assert (lines(logs), cluster.messages(), len(cluster.attempts)) == ([], ["in use"], 2)


async def test_a_status_that_is_refused_is_reported_and_does_not_stop_the_others(
    cluster: Cluster,
) -> None:
    cluster.create("a", "b")
    cluster.api.faults.refusals.append(RefusedError(422, "Invalid", "Too many: 9"))
    with capture_logs() as logs:
        cluster.start()
        await asyncio.sleep(60)
    assert lines(logs) == ["status of an object refused"]
    assert "Too many: 9" in str(logs[0]["error"])
    assert (cluster.messages(), len(cluster.attempts)) == (["in use"], 2)


def cut(cluster: Cluster) -> None:
    cluster.replicas[0].link.is_cut = True


def fail(cluster: Cluster) -> None:
    cluster.api.faults.refusals += [RefusedError(503, "ServiceUnavailable", "")] * 10_000


def mend(cluster: Cluster) -> None:
    cluster.replicas[0].link.is_cut = False
    cluster.api.faults.refusals.clear()


@pytest.mark.parametrize("harm", [cut, fail], ids=["unreachable", "503"])
async def test_while_the_server_is_away_it_backs_off(
    cluster: Cluster, harm: Callable[[Cluster], None]
) -> None:
    cluster.create("a")
    cluster.start()
    harm(cluster)
    with capture_logs() as logs:
        await asyncio.sleep(600)
    assert lines(logs) == ["status of objects cannot be written now"]
    assert len(cluster.attempts) < 60
    mend(cluster)
    await asyncio.sleep(35)
    assert cluster.messages() == ["in use"]


async def test_a_standby_writes_only_when_it_leads(cluster: Cluster) -> None:
    cluster.create("a", "b")
    replica = cluster.start()
    replica.may_write = False
    await asyncio.sleep(HOUR)
    assert cluster.attempts == []
    replica.may_write = True
    await asyncio.sleep(6)
    assert cluster.messages() == ["in use"] * 2
