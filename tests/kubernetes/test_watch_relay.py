"""A relay follows each kind once for all its clients, and says what it does not know."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from log_watch import Logs

from epp.kubernetes import shared_watch, watch_relay
from epp.kubernetes.api import (
    ApiClient,
    ApiError,
    ConfigurationError,
    Connection,
    ConnectionFailedError,
    KubernetesApiError,
    UnreachableError,
)
from epp.kubernetes.api.relayed_errors import restored
from epp.kubernetes.api.resource import ApiCall
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.watch_relay import WatchRelay
from epp.observability.http_connection import Request, Response

from .conftest import connect
from .fake_api import CONFIG_MAPS, GADGETS, NODES, FakeApi, fake_api
from .fake_state import expired
from .followed import Thing, briefly, following
from .relays import relayed_client, served_relay

PATH = "/api/v1/namespaces/d/configmaps"
WATCH = ApiCall(verb="watch", resource=CONFIG_MAPS, namespace="d")
FROM_THE_BEGINNING = {"watch": "true", "sendInitialEvents": "true"}
IN_D = {"namespace": "d"}


class Calls:
    """Calls a relay on the loop of the test."""

    def __init__(self, relay: WatchRelay) -> None:
        self.relay = relay

    async def get(self, path: str = PATH, **query: str) -> Response:
        target = f"{path}?{urlencode(query)}" if query else path
        return await self.relay.respond(Request("GET", target.encode(), {}))

    async def error(self, **query: str) -> KubernetesApiError:
        response = await self.get(**query)
        assert response.status == HTTPStatus.SERVICE_UNAVAILABLE
        return restored(response.body, WATCH)

    async def watch(self, **query: str) -> "Lines":
        response = await self.get(**query)
        assert response.status == HTTPStatus.OK, response.body
        assert response.stream is not None
        return Lines(response.stream())


class Lines:
    """The events of an open watch."""

    def __init__(self, chunks: Any) -> None:
        self.chunks = chunks
        self._events: list[dict[str, Any]] = []

    async def __anext__(self) -> dict[str, Any]:
        while not self._events:
            chunk = await anext(self.chunks)
            assert chunk.endswith(b"\n")
            self._events = [json.loads(line) for line in chunk.splitlines()]
        return self._events.pop(0)

    async def brief(self, count: int) -> list[tuple[str, str]]:
        """Return type and name, or version, of the next events."""
        events = [await anext(self) for _ in range(count)]
        return [(each["type"], _name(each["object"]["metadata"])) for each in events]

    async def end(self) -> list[dict[str, Any]]:
        """Return all events until the end."""
        events = []
        try:
            while True:
                events.append(await anext(self))
        except StopAsyncIteration:
            return events


def _name(metadata: dict[str, Any]) -> str:
    return str(metadata.get("name") or metadata["resourceVersion"])


@pytest.fixture
def connects(api: FakeApi, tmp_path: Path) -> Callable[[], Connection]:
    return lambda: connect(tmp_path, api.url)


@pytest.fixture
async def calls(connects: Callable[[], Connection]) -> AsyncIterator[Calls]:
    relay = WatchRelay(SharedClient(connects), sleep=briefly)
    yield Calls(relay)
    await relay.close()


# What is passed on


async def test_two_clients_follow_a_kind_by_one_watch(
    api: FakeApi, connects: Callable[[], Connection]
) -> None:
    api.create(CONFIG_MAPS, "a", data={"value": "1"})
    connection = await asyncio.to_thread(connects)
    async with (
        served_relay(connects) as path,
        ApiClient(connection, relay=path) as first,
        ApiClient(connection, relay=path) as second,
        following(first, CONFIG_MAPS, Thing, **IN_D) as one,
        following(second, CONFIG_MAPS, Thing, **IN_D) as other,
    ):
        for each in (one, other):
            await each.synced()
            assert each.values == {"a": "1"}
        api.create(CONFIG_MAPS, "b", data={"value": "2"})
        await one.until(lambda: one.values == {"a": "1", "b": "2"})
        await other.until(lambda: other.values == {"a": "1", "b": "2"})
        assert api.watches == 1
        assert len(api.requests) == 1


async def test_other_calls_go_to_the_api_server(
    api: FakeApi, connects: Callable[[], Connection]
) -> None:
    api.create(CONFIG_MAPS, "a")
    async with relayed_client(connects) as client:
        assert (await client.get(CONFIG_MAPS, Thing, name="a", namespace="d")).metadata.name == "a"
        assert await client.find(CONFIG_MAPS) is not None
        with pytest.raises(ApiError, match="404 NotFound"):
            await client.get(CONFIG_MAPS, Thing, name="b", namespace="d")
    assert [each.path for each in api.requests] == [f"{PATH}/a", "/api/v1", f"{PATH}/b"]


async def test_each_scope_has_a_watch_of_its_own(api: FakeApi, calls: Calls) -> None:
    api.create(CONFIG_MAPS, "a", labels={"x": "1"})
    api.create(CONFIG_MAPS, "b")
    api.create(NODES, "n", namespace="")
    scopes: list[tuple[str, dict[str, str], list[str]]] = [
        (PATH, {}, ["a", "b"]),
        (PATH, {"labelSelector": "x=1"}, ["a"]),
        (PATH, {"labelSelector": "!x"}, ["b"]),
        (PATH, {"fieldSelector": "metadata.name=b"}, ["b"]),
        ("/api/v1/configmaps", {}, ["a", "b"]),
        ("/api/v1/nodes", {}, ["n"]),
        ("/apis/example.com/v1alpha1/namespaces/d/gadgets", {}, []),
    ]
    for path, query, names in scopes * 2:
        body = json.loads((await calls.get(path, **query)).body)
        assert [each["metadata"]["name"] for each in body["items"]] == names
    assert calls.relay.scopes == api.watches == len(scopes)
    asked = {(each.path, each.query.get("labelSelector")) for each in api.requests}
    assert asked == {(path, query.get("labelSelector")) for path, query, _ in scopes}


@pytest.mark.parametrize(
    "path", ["/", "/version", "/api/v1", "/apis/g/v1", f"{PATH}/a", "/api/v1/namespaces/d/p/a/log"]
)
async def test_what_is_no_collection_is_not_found(calls: Calls, path: str) -> None:
    response = await calls.get(path)
    assert response.status == HTTPStatus.NOT_FOUND
    assert "is no collection of objects" in response.body.decode()
    assert not calls.relay.scopes


async def test_a_watch_begins_with_all_objects_and_goes_on_from_any_version(
    api: FakeApi, calls: Calls
) -> None:
    for name in "ab":
        api.create(CONFIG_MAPS, name)
    version = str(api.state.revision)
    watch = await calls.watch(**FROM_THE_BEGINNING)
    assert await watch.brief(3) == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", version)]
    api.update(CONFIG_MAPS, "a", data={"value": "1"})
    between = str(api.state.revision)
    api.create(CONFIG_MAPS, "c")
    api.delete(CONFIG_MAPS, "b")
    changes = [("MODIFIED", "a"), ("ADDED", "c"), ("DELETED", "b")]
    assert await watch.brief(3) == changes
    later = await calls.watch(watch="true", resourceVersion=version)
    assert await later.brief(3) == changes
    latest = await calls.watch(watch="true", resourceVersion=between)
    assert await latest.brief(2) == changes[1:]
    api.send_bookmarks()
    for each in (watch, later, latest):
        assert await each.brief(1) == [("BOOKMARK", str(api.state.revision))]
        await each.chunks.aclose()
    assert api.watches == 1


async def test_a_list_has_all_objects_as_they_are(api: FakeApi, calls: Calls) -> None:
    api.faults.watch_list = "refused"  # so the relay lists, too, in pages
    made = [api.create(CONFIG_MAPS, f"n{number}", extra=[number]) for number in range(700)]
    body = json.loads((await calls.get(limit="500")).body)
    assert sorted(body["items"], key=lambda each: int(each["extra"][0])) == made
    assert body["metadata"] == {"resourceVersion": str(api.state.revision)}
    api.delete(CONFIG_MAPS, "n0")
    watch = await calls.watch(watch="true", resourceVersion=body["metadata"]["resourceVersion"])
    assert await watch.brief(1) == [("DELETED", "n0")]
    await watch.chunks.aclose()


async def test_a_client_without_watch_lists_is_served_lists(
    api: FakeApi, connects: Callable[[], Connection]
) -> None:
    api.create(CONFIG_MAPS, "a", data={"value": "1"})
    async with (
        relayed_client(connects) as client,
        following(client, CONFIG_MAPS, Thing, **IN_D) as followed,
    ):
        followed.reflector._has_watch_list = False
        await followed.synced()
        api.update(CONFIG_MAPS, "a", data={"value": "2"})
        await followed.until(lambda: followed.values == {"a": "2"})


# Who is behind, or leaves


async def test_a_version_that_the_relay_does_not_know_is_gone(api: FakeApi, calls: Calls) -> None:
    api.create(CONFIG_MAPS, "a")
    await calls.get()
    error = await calls.error(watch="true", resourceVersion="1")
    assert isinstance(error, ApiError)
    assert error.is_expired
    assert str(error) == (
        "cannot watch configmaps in namespace d: 410 Expired: the watch relay does not have all"
        " changes since resource version 1"
    )


async def test_a_client_that_reads_too_slowly_begins_anew(api: FakeApi, calls: Calls) -> None:
    api.create(CONFIG_MAPS, "a")
    slow = await calls.watch(**FROM_THE_BEGINNING)
    quick = await calls.watch(**FROM_THE_BEGINNING)
    assert await slow.brief(1) == await quick.brief(1) == [("ADDED", "a")]
    assert (await quick.brief(1))[0][0] == "BOOKMARK"
    for number in range(1200):
        api.update(CONFIG_MAPS, "a", data={"value": str(number)})
        if number % 100 == 99:
            assert {kind for kind, _ in await quick.brief(100)} == {"MODIFIED"}
    events = await slow.end()
    assert [each["type"] for each in events] == ["BOOKMARK", "ERROR"]
    assert events[-1]["object"]["code"] == 410
    await quick.chunks.aclose()


async def test_a_client_that_ends_leaves_the_watch_to_the_other(
    api: FakeApi, connects: Callable[[], Connection]
) -> None:
    connection = await asyncio.to_thread(connects)
    async with (
        served_relay(connects) as path,
        ApiClient(connection, relay=path) as second,
        following(second, CONFIG_MAPS, Thing, **IN_D) as other,
    ):
        async with (
            ApiClient(connection, relay=path) as first,
            following(first, CONFIG_MAPS, Thing, **IN_D) as one,
        ):
            await one.synced()
        api.create(CONFIG_MAPS, "a", data={"value": "1"})
        await other.until(lambda: other.values == {"a": "1"})
        # It comes back, and gets all from the relay.
        async with (
            ApiClient(connection, relay=path) as first,
            following(first, CONFIG_MAPS, Thing, **IN_D) as one,
        ):
            await one.synced()
            assert one.values == {"a": "1"}
    assert len(api.requests) == 1


async def test_a_watch_that_nobody_uses_ends_and_begins_anew_when_it_is_asked_for(
    api: FakeApi, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_watch, "UNUSED_SECONDS", 0.01)
    watch = await calls.watch(**FROM_THE_BEGINNING)
    assert (await watch.brief(1))[0][0] == "BOOKMARK"
    assert calls.relay.scopes == 1
    await watch.chunks.aclose()
    await api.until(lambda: api.watches == 0)
    assert calls.relay.scopes == 0
    api.create(CONFIG_MAPS, "a")
    again = await calls.watch(**FROM_THE_BEGINNING)
    assert (await again.brief(1)) == [("ADDED", "a")]
    assert len(api.requests) == 2
    await again.chunks.aclose()


async def test_a_watch_that_is_used_again_in_time_goes_on(
    api: FakeApi, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_watch, "UNUSED_SECONDS", 0.05)
    await calls.get()
    watch = await calls.watch(**FROM_THE_BEGINNING)
    await anext(watch)
    await asyncio.sleep(0.1)  # longer than it is kept without users
    assert calls.relay.scopes == api.watches == 1
    await watch.chunks.aclose()


# Failures


async def test_a_refusal_says_to_each_client_what_it_would_say_without_a_relay(
    api: FakeApi, client: ApiClient, connects: Callable[[], Connection], logs: Logs
) -> None:
    api.faults.denied = {("watch", "configmaps"), ("list", "configmaps")}
    async with following(client, CONFIG_MAPS, Thing, **IN_D) as direct:
        await logs.until("objects not followed")
        fault = str(direct.reflector.status.fault)
    logs.entries.clear()
    assert fault.startswith("cannot watch configmaps in namespace d: 403 Forbidden")
    async with (
        relayed_client(connects) as relayed,
        following(relayed, CONFIG_MAPS, Thing, **IN_D) as followed,
    ):
        await logs.until("objects not followed")
        while followed.reflector.status.fault is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        assert str(followed.reflector.status.fault) == fault
        assert not followed.reflector.status.is_synced
        api.faults.denied = set()
        await followed.synced()
        assert followed.reflector.status.fault is None
    # The relay has said it; clients only add it at level debug.
    by_level = [(each["log_level"], each["event"]) for each in logs.entries]
    assert by_level.count(("warning", "objects not followed")) == 1
    assert by_level.count(("info", "objects followed again")) == 1


async def test_while_the_api_server_is_away_watches_end_and_calls_say_so(
    tmp_path: Path,
) -> None:
    async with fake_api() as first:
        port = int(first.url.rpartition(":")[2])
        relay = WatchRelay(SharedClient(lambda: connect(tmp_path, first.url)), sleep=briefly)
        calls = Calls(relay)
        first.create(CONFIG_MAPS, "a")
        watch = await calls.watch(**FROM_THE_BEGINNING)
        assert [kind for kind, _ in await watch.brief(2)] == ["ADDED", "BOOKMARK"]
    assert await watch.end() == []
    error = await calls.error(**FROM_THE_BEGINNING)
    assert isinstance(error, UnreachableError)
    assert str(error) == f"cannot connect to {first.url}: connection refused"
    assert isinstance(await calls.error(), UnreachableError)
    async with fake_api(port=port):
        while (await calls.get()).status != HTTPStatus.OK:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        again = await calls.watch(**FROM_THE_BEGINNING)
        assert [kind for kind, _ in await again.brief(1)] == ["BOOKMARK"]  # nothing is left
        await again.chunks.aclose()
        await relay.close()


async def test_a_short_interruption_is_made_up_for_without_the_clients(
    api: FakeApi, calls: Calls
) -> None:
    watch = await calls.watch(**FROM_THE_BEGINNING)
    await anext(watch)
    api.cut_watches()
    api.create(CONFIG_MAPS, "a")
    assert await watch.brief(1) == [("ADDED", "a")]
    assert len(api.requests) == 2
    await watch.chunks.aclose()


async def test_a_call_waits_while_a_watch_is_being_opened(api: FakeApi, calls: Calls) -> None:
    await calls.get()
    api.faults.is_hung = True
    api.cut_watches()
    await api.until(lambda: api.watches == 0)
    waiting = asyncio.create_task(calls.get())
    await api.until(lambda: len(api.requests) == 2)
    assert not waiting.done()  # whether the copy is current is not known
    waiting.cancel()


async def test_when_the_api_server_forgets_versions_clients_read_all_anew(
    api: FakeApi, calls: Calls
) -> None:
    api.create(CONFIG_MAPS, "a")
    watch = await calls.watch(**FROM_THE_BEGINNING)
    await watch.brief(2)
    api.fail_watches(expired())
    api.delete(CONFIG_MAPS, "a")
    events = await watch.end()
    assert [each["object"].get("code") for each in events] == [410]
    again = await calls.watch(**FROM_THE_BEGINNING)
    assert (await again.brief(1))[0][0] == "BOOKMARK"
    await again.chunks.aclose()


async def test_a_hung_api_server_is_a_failure_of_the_relay_first(
    api: FakeApi, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.kubernetes.api.reflector._IDLE_SECONDS", 0.05)
    monkeypatch.setattr("epp.kubernetes.api.client._WATCH_OPEN_SECONDS", 0.05)
    watch = await calls.watch(**FROM_THE_BEGINNING)
    await anext(watch)
    api.faults.is_hung = True
    assert await watch.end() == []
    error = await calls.error()
    assert type(error) is ConnectionFailedError
    assert str(error) == f"{api.url} sent nothing for 0.05 s"


async def test_a_list_that_takes_too_long_is_a_failure(
    api: FakeApi, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_relay, "_PATIENCE_SECONDS", 0.05)
    api.faults.watch_list = "refused"
    api.faults.lists_wait_for = asyncio.Event()
    error = await calls.error()
    assert type(error) is ConnectionFailedError
    assert str(error) == "the API server has not sent all objects within 0.05 s"
    api.faults.lists_wait_for.set()
    await api.until(lambda: api.watches == 1)
    assert json.loads((await calls.get()).body)["items"] == []


async def test_without_a_configuration_calls_say_so_and_try_again(
    api: FakeApi, connects: Callable[[], Connection]
) -> None:
    found: list[Connection] = []

    def find() -> Connection:
        if not found:
            raise ConfigurationError("no cluster")
        return found[0]

    calls = Calls(WatchRelay(SharedClient(find)))
    assert str(await calls.error()) == "no cluster"
    assert not calls.relay.scopes
    found.append(await asyncio.to_thread(connects))
    assert json.loads((await calls.get()).body)["items"] == []
    await calls.relay.close()


async def test_a_fault_of_the_relay_itself_is_reported_and_the_next_call_begins_anew(
    calls: Calls, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("epp.kubernetes.api.reflector.Reflector.run", fail)
        error = await calls.error()
    assert str(error) == "the watch relay has failed: RuntimeError: a bug"
    assert [(each["event"], each["resource"]) for each in logs.entries] == [
        ("watch failed", "configmaps")
    ]
    assert (await calls.get()).status == HTTPStatus.OK


async def test_a_relay_that_is_away_is_unreachable(
    connects: Callable[[], Connection], tmp_path: Path
) -> None:
    connection = await asyncio.to_thread(connects)
    async with ApiClient(connection, relay=tmp_path / "none") as client:
        with pytest.raises(UnreachableError, match="cannot connect to http://watch-relay: no such"):
            await client.list_page(CONFIG_MAPS, namespace="d", params={}, timeout_seconds=5)


async def test_an_object_that_is_refused_by_a_client_hides_no_other(
    api: FakeApi, connects: Callable[[], Connection]
) -> None:
    api.create(GADGETS, "good", data={"value": "1"})
    api.create(GADGETS, "bad", data=[])
    async with (
        relayed_client(connects) as client,
        following(client, GADGETS, Thing, **IN_D) as followed,
    ):
        await followed.synced()
        assert followed.names == {"good"}
        assert followed.reflector.status.undecodable == 1


async def test_new_credentials_are_used_for_the_next_watch(api: FakeApi, tmp_path: Path) -> None:
    api.faults.tokens = {"old"}
    (tmp_path / "token").write_text("old")
    user = f"{{tokenFile: '{tmp_path / 'token'}'}}"
    relay = WatchRelay(SharedClient(lambda: connect(tmp_path, api.url, user)), sleep=briefly)
    calls = Calls(relay)
    watch = await calls.watch(**FROM_THE_BEGINNING)
    await anext(watch)
    await asyncio.to_thread((tmp_path / "token").write_text, "new")
    api.faults.tokens = {"new"}
    api.cut_watches()
    api.create(CONFIG_MAPS, "a")
    assert await watch.brief(1) == [("ADDED", "a")]
    await watch.chunks.aclose()
    await relay.close()


async def test_a_refused_list_is_passed_on_with_its_verb(api: FakeApi, calls: Calls) -> None:
    api.faults.watch_list = "refused"
    api.faults.denied = {("list", "configmaps")}
    error = await calls.error(**FROM_THE_BEGINNING)
    assert str(error).startswith("cannot list configmaps in namespace d: 403 Forbidden")
