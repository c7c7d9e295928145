"""A reflector's requests, its reports of faults, and its recovery from each of them."""

import asyncio
import random
import socket
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
from log_watch import Logs

from epp.kubernetes.api import (
    ApiClient,
    ApiError,
    ConnectionFailedError,
    ObjectDecoder,
    ObjectMeta,
    Reflector,
    UnreachableError,
    reflector,
)

from .conftest import connect
from .fake_api import CONFIG_MAPS, GADGETS, FakeApi, Request, fake_api
from .fake_state import RefusedError, expired
from .followed import Followed, Thing, following

FORGOTTEN = expired()


def _watches(api: FakeApi) -> list[Request]:
    return [each for each in api.requests if each.is_watch]


def _lists(api: FakeApi) -> list[Request]:
    return [each for each in api.requests if not each.is_watch]


class Sleep:
    """Records the waits of a reflector, and holds it there until the test ends the wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._asleep = asyncio.Event()
        self._woken = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._asleep.set()
        await self._woken.wait()
        self._woken.clear()

    async def begun(self) -> None:
        """Wait until the reflector waits."""
        await self._asleep.wait()

    def end(self) -> None:
        """End the wait."""
        self._asleep.clear()
        self._woken.set()

    async def pass_by(self, waits: int = 1) -> None:
        """End as many waits as they come, and wait for the next."""
        for _ in range(waits):
            await self.begun()
            self.end()
        await self.begun()


# What is asked for


async def test_a_watch_list_is_asked_for_first_and_then_resumed(
    api: FakeApi, client: ApiClient
) -> None:
    api.create(CONFIG_MAPS, "a")
    async with following(
        client,
        CONFIG_MAPS,
        Thing,
        namespace="d",
        label_selector="!x",
        field_selector="metadata.name=a",
    ) as followed:
        await followed.synced()
        api.cut_watches()
        await api.until(lambda: len(_watches(api)) == 2)
    first, second = (dict(each.query) for each in _watches(api))
    assert not _lists(api)
    assert all(300 <= int(each.pop("timeoutSeconds")) <= 600 for each in (first, second))
    common = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "labelSelector": "!x",
        "fieldSelector": "metadata.name=a",
    }
    begins = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    assert first == common | begins
    assert second == common | {"resourceVersion": str(api.state.revision)}
    assert {each.path for each in api.requests} == {"/api/v1/namespaces/d/configmaps"}


async def test_a_server_without_watch_lists_is_listed_in_pages_and_watched_from_there(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    api.faults.watch_list = "refused"
    for number in range(1200):
        api.create(CONFIG_MAPS, f"n{number}")
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        assert len(followed.names) == 1200
        assert followed.calls == 1
        await api.until(lambda: api.watches == 1)
        api.fail_watches(FORGOTTEN)
        await api.until(lambda: len(_lists(api)) == 6)
    limits = [(each.query["limit"], "continue" in each.query) for each in _lists(api)]
    assert limits == [("500", False), ("500", True), ("500", True)] * 2
    # It has been refused a watch list once, and does not ask for one again.
    sends_all = ["sendInitialEvents" in each.query for each in _watches(api)]
    assert sends_all[:2] == [True, False]
    assert not any(sends_all[1:])
    assert _watches(api)[1].query["resourceVersion"] == str(api.state.revision)
    assert not logs.entries  # that is no fault


async def test_a_server_that_ignores_watch_lists_is_listed(
    api: FakeApi, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "_WATCH_LIST_SECONDS", 0.05)
    api.faults.watch_list = "ignored"
    api.create(CONFIG_MAPS, "a")
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        assert followed.names == {"a"}
        assert len(_lists(api)) == 1
        api.create(CONFIG_MAPS, "b")
        await followed.until(lambda: followed.names == {"a", "b"})


async def test_all_namespaces_are_followed_without_a_namespace(
    api: FakeApi, client: ApiClient
) -> None:
    api.create(CONFIG_MAPS, "a", namespace="one")
    api.create(CONFIG_MAPS, "a", namespace="two")
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        assert set(followed.reflector.objects) == {("one", "a"), ("two", "a")}


async def test_a_bookmark_is_where_the_next_watch_begins(api: FakeApi, client: ApiClient) -> None:
    async with following(client, CONFIG_MAPS, Thing, namespace="d") as followed:
        await followed.synced()
        await api.until(lambda: api.watches == 1)
        for number in range(5):
            api.create(CONFIG_MAPS, f"n{number}", namespace="elsewhere")
        bookmark = str(api.state.revision)
        api.send_bookmarks()
        api.state.compact()
        api.end_watches()
        api.create(CONFIG_MAPS, "a")
        await followed.until(lambda: followed.names == {"a"})
        assert followed.reflector.status.relists == 0
    assert _watches(api)[1].query["resourceVersion"] == bookmark


async def test_events_may_come_in_one_piece(api: FakeApi, client: ApiClient) -> None:
    meta = '"metadata": {"name": "%s", "resourceVersion": "%d"'
    events = [
        '{"type": "ADDED", "object": {' + meta % ("a", 5) + "}}}",
        '{"type": "BOOKMARK", "object": {'
        + meta % ("", 7)
        + ', "annotations": {"k8s.io/initial-events-end": "true"}}}}',
        '{"type": "ADDED", "object": {' + meta % ("b", 8) + "}}}",
    ]
    body = "".join(each + "\n" for each in events).encode()
    api.faults.raw = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    sleep = Sleep()
    async with following(client, CONFIG_MAPS, Thing, sleep=sleep) as followed:
        await sleep.begun()
        assert followed.names == {"a", "b"}
        api.faults.raw = None
        sleep.end()
        await api.until(lambda: len(api.requests) == 2)
    assert api.requests[1].query["resourceVersion"] == "8"


async def test_a_batch_of_events_is_reported_once(api: FakeApi, client: ApiClient) -> None:
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        for number in range(50):  # no await in between: the server sends them together
            api.create(CONFIG_MAPS, f"n{number}")
        await followed.until(lambda: len(followed.names) == 50)
        assert followed.calls < 10


# Gone


@pytest.mark.parametrize("expired_as", ["event", "status"])
async def test_a_forgotten_version_makes_it_read_all_anew(
    expired_as: str, api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    api.faults.expired_as = expired_as  # type: ignore[assignment]  # one of two strings
    for name in "abc":
        api.create(CONFIG_MAPS, name, data={"value": "1"})
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        kept = followed.reflector.objects["d", "c"]
        api.cut_watches()
        api.delete(CONFIG_MAPS, "a")
        api.update(CONFIG_MAPS, "b", data={"value": "2"})
        api.state.compact()
        await followed.until(lambda: followed.values == {"b": "2", "c": "1"})
        assert followed.reflector.status.relists == 1
        assert followed.reflector.objects["d", "c"] is kept
        assert followed.calls == 2
    assert not logs.entries


async def test_a_version_that_expires_in_an_open_watch_makes_it_read_all_anew(
    api: FakeApi, client: ApiClient
) -> None:
    api.create(CONFIG_MAPS, "a")
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        await api.until(lambda: api.watches == 1)
        api.fail_watches(FORGOTTEN)
        await api.until(lambda: len(_watches(api)) == 2)
        api.create(CONFIG_MAPS, "b")
        await followed.until(lambda: followed.names == {"a", "b"})
        assert "sendInitialEvents" in _watches(api)[1].query
        assert followed.reflector.status.relists == 1


async def test_a_list_that_expires_between_two_pages_is_read_again_whole(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    api.faults.watch_list = "refused"
    for number in range(501):
        api.create(CONFIG_MAPS, f"n{number}")
    api.faults.lists_wait_for = asyncio.Event()
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await api.until(lambda: len(_lists(api)) == 1)
        api.faults.lists_wait_for.set()
        api.faults.lists_wait_for = asyncio.Event()
        await api.until(lambda: len(_lists(api)) == 2)
        api.create(CONFIG_MAPS, "late")
        api.state.compact()
        api.faults.lists_wait_for.set()
        await followed.synced()
        assert len(followed.names) == 502
    assert [each.query.get("limit") for each in _lists(api)] == ["500", "500", None]
    assert not logs.entries


@pytest.mark.parametrize("expired_as", ["event", "status"])
async def test_a_restored_etcd_makes_it_read_all_anew(
    expired_as: str, api: FakeApi, client: ApiClient
) -> None:
    api.faults.expired_as = expired_as  # type: ignore[assignment]  # one of two strings
    api.create(CONFIG_MAPS, "a")
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        api.state.restore()
        api.cut_watches()
        api.create(CONFIG_MAPS, "b")
        await followed.until(lambda: followed.names == {"a", "b"})
        api.delete(CONFIG_MAPS, "a")
        await followed.until(lambda: followed.names == {"b"})


# Connections


async def test_a_watch_cut_in_the_middle_of_an_event_loses_nothing(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        await api.until(lambda: api.watches == 1)
        api.cut_watches_in_next_event()
        api.create(CONFIG_MAPS, "a", data={"value": "1"})
        await followed.until(lambda: followed.values == {"a": "1"})
        assert len(_watches(api)) == 2
    assert not logs.entries


async def test_an_initial_state_that_is_cut_is_read_again(api: FakeApi, client: ApiClient) -> None:
    api.faults.watch_list = "ignored"  # so that it does not end
    api.create(CONFIG_MAPS, "a")
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await api.until(lambda: api.watches == 1)
        api.cut_watches()
        await api.until(lambda: api.watches == 0)
        assert followed.calls == 0
        api.faults.watch_list = "served"
        await followed.synced()
        assert followed.names == {"a"}


async def test_a_connection_that_falls_silent_is_replaced(
    api: FakeApi, client: ApiClient, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    monkeypatch.setattr(reflector, "_IDLE_SECONDS", 0.05)
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        await api.until(lambda: api.watches == 1)
        api.faults.is_hung = True
        api.create(CONFIG_MAPS, "a")  # the watch is not told
        await api.until(lambda: api.watches == 0)
        api.faults.is_hung = False
        await followed.until(lambda: followed.names == {"a"})
    assert not logs.entries


async def test_a_server_that_is_away_is_tried_again_soon_however_long_it_was_away(
    tmp_path: Path, logs: Logs
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        connection = await asyncio.to_thread(connect, tmp_path, f"http://127.0.0.1:{port}")
        sleep = Sleep()
        async with (
            ApiClient(connection) as client,
            following(client, CONFIG_MAPS, Thing, sleep=sleep) as followed,
        ):
            await sleep.pass_by(10)
            assert isinstance(followed.reflector.status.fault, UnreachableError)
            assert "refused" in str(followed.reflector.status.fault)
            assert followed.reflector.status.last_contact is None
            held.close()
            async with fake_api(port=port) as api:
                api.create(CONFIG_MAPS, "a")
                sleep.end()
                await followed.synced()
                assert followed.reflector.status.fault is None
    assert all(0.8 <= seconds <= 1.6 for seconds in sleep.seconds)
    assert [each["event"] for each in logs.entries] == [
        "objects not followed",
        "objects followed again",
    ]


async def test_a_response_that_is_no_watch_is_a_fault(api: FakeApi, client: ApiClient) -> None:
    api.faults.raw = b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n<html></html>\n"
    sleep = Sleep()
    async with following(client, CONFIG_MAPS, Thing, sleep=sleep) as followed:
        await sleep.begun()
        assert isinstance(followed.reflector.status.fault, ConnectionFailedError)
        assert "no watch event" in str(followed.reflector.status.fault)
        api.faults.raw = None
        sleep.end()
        await followed.synced()


async def test_a_response_that_is_no_list_is_a_fault(api: FakeApi, client: ApiClient) -> None:
    api.faults.watch_list = "refused"
    sleep = Sleep()
    async with following(client, CONFIG_MAPS, Thing, sleep=sleep) as followed:
        await followed.synced()
        await api.until(lambda: api.watches == 1)
        api.fail_watches(FORGOTTEN)
        await sleep.begun()  # the watch was short
        api.faults.raw = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"
        await sleep.pass_by()
        assert isinstance(followed.reflector.status.fault, ConnectionFailedError)
        assert "no list" in str(followed.reflector.status.fault)


async def test_a_cancelled_reflector_closes_its_watch(api: FakeApi, client: ApiClient) -> None:
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        assert api.watches == 1
    await api.until(lambda: api.watches == 0)


# Faults


async def test_what_may_not_be_watched_is_a_fault_until_it_may(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    api.faults.denied.add(("watch", "gadgets"))
    api.create(GADGETS, "a")
    sleep = Sleep()
    async with following(client, GADGETS, Thing, namespace="d", sleep=sleep) as followed:
        await sleep.pass_by(3)
        fault = followed.reflector.status.fault
        assert isinstance(fault, ApiError)
        assert (fault.status, fault.verb, fault.resource, fault.namespace) == (
            403,
            "watch",
            GADGETS,
            "d",
        )
        assert not followed.reflector.status.is_synced
        api.faults.denied.clear()
        sleep.end()
        await followed.synced()
        assert followed.names == {"a"}
        assert followed.reflector.status.fault is None
    begun, ended = logs.entries
    assert begun["event"] == "objects not followed"
    assert (begun["resource"], begun["namespace"]) == ("gadgets", "d")
    assert (
        'allow it by a rule of a Role in d: apiGroups: ["example.com"], resources: ["gadgets"], '
        'verbs: ["watch"]'
    ) in begun["error"]
    assert ended["event"] == "objects followed again"


async def test_a_kind_that_is_installed_later_is_found(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    api.withdraw(GADGETS)
    sleep = Sleep()
    async with following(client, GADGETS, Thing, sleep=sleep) as followed:
        await sleep.begun()
        fault = followed.reflector.status.fault
        assert isinstance(fault, ApiError)
        assert fault.status == 404
        assert "is the CRD of Gadget in example.com/v1alpha1 installed?" in str(fault)
        api.serve(GADGETS)
        api.create(GADGETS, "a")
        sleep.end()
        await followed.synced()
        assert followed.names == {"a"}
    assert len(logs.entries) == 2


async def test_objects_outlive_a_fault(api: FakeApi, client: ApiClient) -> None:
    api.create(CONFIG_MAPS, "a")
    now = 100.0
    sleep = Sleep()
    async with following(client, CONFIG_MAPS, Thing, sleep=sleep, clock=lambda: now) as followed:
        await followed.synced()
        api.faults.denied.add(("watch", "configmaps"))
        api.cut_watches()
        now = 200.0
        await sleep.pass_by()  # the watch was short
        status = followed.reflector.status
        assert isinstance(status.fault, ApiError)
        assert status.is_synced
        assert status.last_contact == 100.0
        assert followed.names == {"a"}
        api.faults.denied.clear()
        api.delete(CONFIG_MAPS, "a")
        sleep.end()
        await followed.until(lambda: not followed.names)
        assert status.last_contact == 200.0
        assert status.relists == 0


async def test_clocks_may_jump(
    api: FakeApi, client: ApiClient, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    wall, now = time.time(), 10_000.0
    async with following(client, CONFIG_MAPS, Thing, clock=lambda: now) as followed:
        await followed.synced()
        before = len(api.requests)
        for number, hours in enumerate((1, -1, 0)):
            # The wall clock, and its own, which only tells the age of the copy.
            now = 10_000.0 + hours * 3600
            monkeypatch.setattr(time, "time", lambda jump=hours * 3600: wall + jump)
            api.create(CONFIG_MAPS, f"c{number}")
            await followed.until(partial(_has, followed, number + 1))
        assert followed.reflector.status.last_contact == now
        assert (len(api.requests), logs.entries) == (before, [])


def _has(followed: Followed[Thing], count: int) -> bool:
    return len(followed.names) == count


async def test_another_fault_is_logged_and_a_repeated_one_is_not(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    broken = RefusedError(500, "InternalError", "etcdserver: leader changed")
    api.faults.refusals += [broken, broken, RefusedError(401, "Unauthorized", "Unauthorized")]
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
    assert [each["event"] for each in logs.entries] == [
        "objects not followed",
        "objects not followed",
        "objects followed again",
    ]
    assert "etcdserver: leader changed" in logs.entries[0]["error"]
    assert "401" in logs.entries[1]["error"]


async def test_a_silent_watch_ends_a_fault(
    api: FakeApi, client: ApiClient, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    monkeypatch.setattr(reflector, "_STEADY_SECONDS", 0.01)
    async with following(client, CONFIG_MAPS, Thing) as followed:
        await followed.synced()
        await api.until(lambda: api.watches == 1)
        api.faults.refusals.append(RefusedError(503, "ServiceUnavailable", "starting"))
        api.cut_watches()
        await logs.until("objects not followed")
        await logs.until("objects followed again")
        assert followed.reflector.status.fault is None


async def test_waits_grow_with_failures_and_obey_the_server(
    api: FakeApi, client: ApiClient
) -> None:
    broken = RefusedError(500, "InternalError", "broken")
    busy = RefusedError(429, "TooManyRequests", "slow down", retry_after=29)
    api.faults.refusals += [broken] * 7 + [busy]
    sleep = Sleep()
    async with following(client, CONFIG_MAPS, Thing, sleep=sleep) as followed:
        await sleep.pass_by(7)
        sleep.end()
        await followed.synced()
        first, second, *_, last, wanted = sleep.seconds
        assert 0.8 <= first <= 1.6 <= second <= 3.2
        assert 15 <= last <= 30
        assert 29 <= wanted <= 30
        api.faults.refusals.append(broken)
        api.cut_watches()
        await sleep.pass_by()  # the watch was short
        assert all(seconds <= 3.2 for seconds in sleep.seconds[-2:])  # begun anew


async def test_watches_that_end_at_once_are_not_asked_for_at_once(
    api: FakeApi, client: ApiClient
) -> None:
    sleep = Sleep()
    async with following(client, CONFIG_MAPS, Thing, sleep=sleep) as followed:
        await followed.synced()
        for number in range(3):
            await api.until(partial(lambda n: len(_watches(api)) > n and api.watches == 1, number))
            api.end_watches()
            await sleep.begun()
            sleep.end()
        assert len(sleep.seconds) == 3
        assert followed.reflector.status.fault is None


async def test_a_steady_watch_that_ends_is_resumed_at_once(
    api: FakeApi, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "_STEADY_SECONDS", 0)
    sleep = Sleep()
    async with following(client, CONFIG_MAPS, Thing, sleep=sleep) as followed:
        await followed.synced()
        for name in "abc":
            api.create(CONFIG_MAPS, name)  # the timer has run when this has come
            await followed.until(partial(lambda expected: expected in followed.names, name))
            before = len(_watches(api))
            api.end_watches()
            await api.until(partial(lambda n: len(_watches(api)) > n, before))
    assert not sleep.seconds


# Objects that cannot be decoded


class Numbers(msgspec.Struct):
    """Here ``data.value`` has to be a number."""

    metadata: ObjectMeta
    data: dict[str, int]


@pytest.mark.parametrize("watch_list", ["served", "refused"])
async def test_an_object_of_another_form_is_left_out_and_hides_no_other(
    watch_list: str, api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    api.faults.watch_list = watch_list  # type: ignore[assignment]  # one of two strings
    api.create(CONFIG_MAPS, "good", data={"value": 1})
    api.create(CONFIG_MAPS, "bad", data={"value": "one"})
    news = asyncio.Event()
    decoder = ObjectDecoder(Numbers)
    follower = Reflector(client, CONFIG_MAPS, decoder, changed=news.set, rng=random.Random(1))
    task = asyncio.create_task(follower.run())

    async def until(names: set[str]) -> None:
        while {name for _, name in follower.objects} != names:
            news.clear()
            await news.wait()

    await until({"good"})
    assert follower.status.undecodable == 1
    api.update(CONFIG_MAPS, "bad", data={"value": "two"})
    api.update(CONFIG_MAPS, "good", data={"value": "none"})
    await until(set())
    assert follower.status.undecodable == 2
    api.update(CONFIG_MAPS, "bad", data={"value": 3})
    await until({"bad"})
    api.delete(CONFIG_MAPS, "good")
    api.create(CONFIG_MAPS, "late", data={"value": 3})
    await until({"bad", "late"})
    assert follower.status.undecodable == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    logged = [(each["event"], each["name"]) for each in logs.entries]
    assert logged == [("object left out", "d/bad"), ("object left out", "d/good")]
    assert "Expected `int`, got `str`" in logs.entries[0]["error"]
