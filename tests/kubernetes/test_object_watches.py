"""Objects that plugins subscribe to reach them, over changes, reloads and server faults."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from log_watch import Logs

from epp.data_layer import ObjectChange, ObjectEvent, ObjectKind
from epp.kubernetes.api import ApiClient
from epp.kubernetes.object_watches import ObjectWatches, PluginObjects

from .fake_api import CONFIG_MAPS, GADGETS, NODES, PODS, FakeApi
from .fake_state import RefusedError

CONFIG_MAP = ObjectKind("", "v1", "ConfigMap")
GADGET = ObjectKind("example.com", "v1alpha1", "Gadget")
NODE = ObjectKind("", "v1", "Node")
POD = ObjectKind("", "v1", "Pod")
DATA = {CONFIG_MAP: frozenset({"data"})}


class Plugins:
    """Hears of objects, as the plugins of a pool do."""

    def __init__(self, watches: ObjectWatches) -> None:
        self.objects = PluginObjects(watches)
        self._watches = watches
        self.events: list[ObjectEvent] = []
        self._news = asyncio.Event()

    @property
    def heard(self) -> list[str]:
        """``+a`` for an object that is there, ``-a`` for a deleted one, in order."""
        signs = {ObjectChange.UPDATED: "+", ObjectChange.DELETED: "-"}
        return [f"{signs[each.change]}{each.name}" for each in self.events]

    def statuses(self) -> set[str]:
        return set(self._watches.statuses())

    def follow(self, wanted: Mapping[ObjectKind, frozenset[str]]) -> None:
        self.objects.follow(wanted, self._receive)

    def present(self, kind: ObjectKind) -> list[str]:
        return sorted(each.name for each in self.objects.present(kind))

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()

    async def until_heard(self, *heard: str) -> None:
        await self.until(lambda: Counter(self.heard) >= Counter(heard))
        assert Counter(self.heard) == Counter(heard)

    def _receive(self, event: ObjectEvent) -> None:
        self.events.append(event)
        self._news.set()


@asynccontextmanager
async def pool(
    watches: ObjectWatches, wanted: Mapping[ObjectKind, frozenset[str]] = DATA
) -> AsyncIterator[Plugins]:
    """Run the plugins of a pool."""
    plugins = Plugins(watches)
    plugins.follow(wanted)
    async with background(plugins.objects.run()):
        yield plugins


@asynccontextmanager
async def following(
    client: ApiClient, wanted: Mapping[ObjectKind, frozenset[str]] = DATA
) -> AsyncIterator[Plugins]:
    """Run the plugins of the only pool."""
    watches = ObjectWatches("d")
    async with background(watches.run(client)), pool(watches, wanted) as plugins:
        yield plugins


@asynccontextmanager
async def background(running: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(running)
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def watched(api: FakeApi) -> list[str]:
    """Return the paths of the watches that have been opened."""
    return [each.path for each in api.requests if each.is_watch]


async def test_objects_and_their_changes_are_reported(api: FakeApi, client: ApiClient) -> None:
    api.create(CONFIG_MAPS, "a", data={"x": "1"})
    api.create(CONFIG_MAPS, "elsewhere", namespace="other")
    async with following(client) as plugins:
        await plugins.until_heard("+a")
        api.create(CONFIG_MAPS, "b", data={"x": "2"})
        await plugins.until_heard("+a", "+b")
        api.update(CONFIG_MAPS, "a", data={"x": "3"})
        api.delete(CONFIG_MAPS, "b")
        await plugins.until_heard("+a", "+b", "+a", "-b")
        (last,) = plugins.objects.present(CONFIG_MAP)
        assert (last.namespace, last.object["data"]) == ("d", {"x": "3"})
        assert last.uid == last.object["metadata"]["uid"]
    assert watched(api) == ["/api/v1/namespaces/d/configmaps"]


async def test_an_object_made_anew_while_nobody_looked_is_another_one(
    api: FakeApi, client: ApiClient
) -> None:
    api.create(CONFIG_MAPS, "a")
    async with following(client) as plugins:
        await plugins.until_heard("+a")
        api.delete(CONFIG_MAPS, "a")  # no step of the loop between
        api.create(CONFIG_MAPS, "a")
        await plugins.until_heard("+a", "-a", "+a")
        first, deleted, second = plugins.events
        assert deleted.uid == first.uid != second.uid


async def test_of_a_pod_only_the_fields_in_use_arrive(api: FakeApi, client: ApiClient) -> None:
    api.create(PODS, "p", labels={"app": "x"}, spec={"nodeName": "n", "containers": [{}]})
    async with following(client, {POD: frozenset({"spec.nodeName"})}) as plugins:
        await plugins.until_heard("+p")
        (event,) = plugins.events
        assert event.object["spec"] == {"nodeName": "n"}
        assert event.object.keys() == {"metadata", "spec"}
        assert "labels" not in event.object["metadata"]


async def test_objects_without_a_namespace_are_those_of_the_cluster(
    api: FakeApi, client: ApiClient
) -> None:
    api.create(NODES, "n", namespace="")
    async with following(client, {NODE: frozenset()}) as plugins:
        await plugins.until_heard("+n")
        assert plugins.events[0].namespace == ""
    assert watched(api) == ["/api/v1/nodes"]


async def test_without_a_wanted_kind_nothing_is_asked_of_the_server(
    api: FakeApi, client: ApiClient
) -> None:
    async with following(client, {}) as plugins:
        plugins.follow({})
        for _ in range(10):
            await asyncio.sleep(0)
        assert api.requests == []
        api.create(CONFIG_MAPS, "a")
        plugins.follow(DATA)
        await plugins.until_heard("+a")


async def test_pools_share_the_watch_of_a_kind(api: FakeApi, client: ApiClient) -> None:
    api.create(CONFIG_MAPS, "a", data={"x": "1"}, immutable=True)
    watches = ObjectWatches("d")
    async with background(watches.run(client)), pool(watches) as one:
        await one.until_heard("+a")
        async with pool(watches, {**DATA, GADGET: frozenset()}) as two:
            await two.until_heard("+a")
            api.create(CONFIG_MAPS, "b")
            api.create(GADGETS, "g")
            await two.until_heard("+a", "+b", "+g")
            await one.until_heard("+a", "+b")
            assert len(watched(api)) == 2
        await api.until(lambda: api.watches == 1)
        api.create(CONFIG_MAPS, "c")
        await one.until_heard("+a", "+b", "+c")
        assert two.present(CONFIG_MAP) == []
        assert two.heard == ["+a", "+b", "+g"]
        async with pool(watches, {CONFIG_MAP: frozenset({"immutable"})}) as three:
            await three.until_heard("+a", "+b", "+c")
            assert [each.object.get("immutable") for each in three.events] == [True, None, None]
            assert len(watched(api)) == 3


async def test_plugins_of_a_pool_that_does_not_run_are_not_heard_of(
    api: FakeApi, client: ApiClient
) -> None:
    watches = ObjectWatches("d")
    async with background(watches.run(client)):
        idle = Plugins(watches)
        idle.follow({GADGET: frozenset()})
        async with pool(watches) as running:
            api.create(CONFIG_MAPS, "a")
            api.create(GADGETS, "g")
            await running.until_heard("+a")
        assert (idle.heard, idle.present(GADGET)) == ([], [])
        assert watched(api) == ["/api/v1/namespaces/d/configmaps"]


async def test_a_reload_stops_what_is_not_wanted_and_keeps_what_is(
    api: FakeApi, client: ApiClient
) -> None:
    api.create(CONFIG_MAPS, "a")
    api.create(GADGETS, "g")
    both = {**DATA, GADGET: frozenset({"spec"})}
    async with following(client, both) as plugins:
        await plugins.until_heard("+a", "+g")
        await api.until(lambda: api.watches == 2)
        before = len(watched(api))
        plugins.follow({CONFIG_MAP: frozenset()})  # fewer fields of it, too
        await api.until(lambda: api.watches == 1)
        assert (plugins.present(CONFIG_MAP), len(watched(api))) == (["a"], before)
        api.create(GADGETS, "h")
        api.create(CONFIG_MAPS, "b")
        await plugins.until_heard("+a", "+g", "+b")
        plugins.follow({})
        await api.until(lambda: api.watches == 0)


async def test_more_fields_are_read_anew_and_every_object_is_reported_again(
    api: FakeApi, client: ApiClient
) -> None:
    for name in ("a", "b"):
        api.create(CONFIG_MAPS, name, data={"x": "1"}, immutable=True)
    async with following(client) as plugins:
        await plugins.until_heard("+a", "+b")
        plugins.events.clear()
        plugins.follow({CONFIG_MAP: frozenset({"data", "immutable"})})
        assert plugins.present(CONFIG_MAP) == []
        api.delete(CONFIG_MAPS, "b")
        await plugins.until_heard("+a", "-b")
        (event,) = plugins.objects.present(CONFIG_MAP)
        assert event.object["immutable"] is True
        await api.until(lambda: api.watches == 1)


async def test_changes_during_a_gap_are_reported_once_and_what_stayed_is_not(
    api: FakeApi, client: ApiClient
) -> None:
    for name in ("stays", "goes", "changes"):
        api.create(CONFIG_MAPS, name, data={"x": "1"})
    async with following(client) as plugins:
        await plugins.until_heard("+stays", "+goes", "+changes")
        plugins.events.clear()
        api.cut_watches()
        api.delete(CONFIG_MAPS, "goes")
        api.update(CONFIG_MAPS, "changes", data={"x": "2"})
        api.state.compact()
        await plugins.until_heard("-goes", "+changes")


async def test_a_kind_that_is_installed_later_is_followed_and_removed_ones_are_deleted(
    api: FakeApi, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.kubernetes.served_kind.LOOK_SECONDS", 0.01)
    api.withdraw(GADGETS)
    async with following(client, {GADGET: frozenset({"spec"})}) as plugins:
        await api.until(lambda: len(api.requests) > 2)
        assert plugins.statuses() == set()
        api.serve(GADGETS)
        api.create(GADGETS, "g", spec={"size": 1})
        await plugins.until_heard("+g")
        assert plugins.statuses() == {"plugins: Gadget (example.com/v1alpha1)"}
        api.withdraw(GADGETS)
        api.cut_watches()
        await plugins.until_heard("+g", "-g")
        assert plugins.present(GADGET) == []


async def test_without_the_right_the_log_names_the_rule(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    api.faults.denied = {("watch", "gadgets"), ("list", "gadgets")}
    api.create(CONFIG_MAPS, "a")
    wanted: Mapping[ObjectKind, frozenset[str]] = {GADGET: frozenset(), **DATA}
    async with following(client, wanted) as plugins:
        await logs.until("objects not followed")
        await plugins.until_heard("+a")
    (line,) = (each for each in logs.entries if each["event"] == "objects not followed")
    assert line["error"].endswith(
        'allow it by a rule of a Role in d: apiGroups: ["example.com"], resources:'
        ' ["gadgets"], verbs: ["watch"]'
    )


async def test_a_server_that_is_away_at_first_is_awaited(
    api: FakeApi, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.kubernetes.served_kind._RETRY_SECONDS", 0.01)
    api.faults.refusals = [RefusedError(503, "", "")] * 5
    api.create(CONFIG_MAPS, "a")
    async with following(client) as plugins:
        await plugins.until_heard("+a")
