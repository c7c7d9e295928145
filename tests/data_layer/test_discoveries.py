"""One discovery replaces another at run time: the pool is never empty, servers keep state."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from log_watch import Logs

from epp.data_layer import (
    Discoveries,
    DiscoveryError,
    DuplicateEndpointError,
    EndpointDiscovery,
    EndpointSink,
    EndpointSpec,
    EndpointStore,
)


def spec(name: str, port: int = 1) -> EndpointSpec:
    return EndpointSpec(name, f"10.0.0.1:{port}")


class FixedDiscovery(EndpointDiscovery):
    """Reports the endpoints that a test gives it."""

    type = "fixed-discovery"

    def __init__(self, name: str, *first: EndpointSpec) -> None:
        self.name = name
        self.news: asyncio.Queue[Sequence[EndpointSpec] | Exception] = asyncio.Queue()
        self.is_running = False
        if first:
            self.news.put_nowait(first)

    async def run(self, sink: EndpointSink) -> None:
        self.is_running = True
        try:
            while True:
                news = await self.news.get()
                if isinstance(news, Exception):
                    raise news
                sink.replace_endpoints(self.name, news)
        finally:
            self.is_running = False


async def turns() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def running(
    store: EndpointStore, chosen: FixedDiscovery | None, *fixed: FixedDiscovery
) -> AsyncIterator[Discoveries]:
    discoveries = Discoveries(store, fixed, chosen)
    task = asyncio.create_task(discoveries.run())
    await turns()
    try:
        yield discoveries
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def names(store: EndpointStore) -> list[str]:
    return [endpoint.name for endpoint in store.snapshot]


async def test_new_discovery_takes_the_place_of_the_old_one_in_one_step() -> None:
    store = EndpointStore()
    old, new = (
        FixedDiscovery("old", spec("a"), spec("b")),
        FixedDiscovery("new", spec("b"), spec("c")),
    )
    async with running(store, old) as discoveries:
        shared = store.snapshot[1]
        await discoveries.prepare(new)
        assert names(store) == ["a", "b"]
        assert old.is_running
        discoveries.use(new)
        assert names(store) == ["b", "c"]
        assert store.snapshot[0] is shared
        await turns()
        assert not old.is_running
        new.news.put_nowait([spec("d")])
        await turns()
        assert names(store) == ["d"]


async def test_new_discovery_of_the_same_name_takes_over_too() -> None:
    store = EndpointStore()
    async with running(store, FixedDiscovery("d", spec("a"))) as discoveries:
        new = FixedDiscovery("d", spec("a"), spec("b"))
        await discoveries.prepare(new)
        before = store.snapshot[0]
        discoveries.use(new)
        assert names(store) == ["a", "b"]
        assert store.snapshot[0] is before


async def test_last_report_before_it_is_used_counts() -> None:
    store = EndpointStore()
    async with running(store, FixedDiscovery("old", spec("a"))) as discoveries:
        new = FixedDiscovery("new", spec("b"))
        await discoveries.prepare(new)
        new.news.put_nowait([spec("c")])
        await turns()
        discoveries.use(new)
        assert names(store) == ["c"]


async def test_what_an_ended_discovery_reports_late_is_ignored() -> None:
    store = EndpointStore()
    sinks: list[EndpointSink] = []

    class Leaking(FixedDiscovery):
        async def run(self, sink: EndpointSink) -> None:
            sinks.append(sink)
            await super().run(sink)

    async with running(store, Leaking("old", spec("a"))) as discoveries:
        new = FixedDiscovery("new", spec("b"))
        await discoveries.prepare(new)
        discoveries.use(new)
        sinks[0].replace_endpoints("old", [spec("z")])
        assert names(store) == ["b"]


async def test_discovery_that_is_kept_runs_on() -> None:
    store = EndpointStore()
    same = FixedDiscovery("d", spec("a"))
    async with running(store, same) as discoveries:
        await discoveries.prepare(same)
        discoveries.use(same)
        same.news.put_nowait([spec("b")])
        await turns()
        assert names(store) == ["b"]


async def test_discovery_that_is_dropped_takes_its_endpoints_along() -> None:
    store = EndpointStore()
    async with running(
        store, FixedDiscovery("d", spec("a")), FixedDiscovery("fixed", spec("f"))
    ) as discoveries:
        await discoveries.prepare(None)
        assert names(store) == ["a", "f"]
        discoveries.use(None)
        assert names(store) == ["f"]


async def test_discovery_that_fails_at_its_first_look_leaves_the_old_one() -> None:
    store = EndpointStore()
    old, new = FixedDiscovery("old", spec("a")), FixedDiscovery("new")
    new.news.put_nowait(DiscoveryError("no such file"))
    async with running(store, old) as discoveries:
        with pytest.raises(DiscoveryError, match="discovery 'new': no such file"):
            await discoveries.prepare(new)
        assert names(store) == ["a"]
        assert old.is_running


async def test_bug_at_the_first_look_is_reported_with_its_class() -> None:
    new = FixedDiscovery("new")
    new.news.put_nowait(KeyError("port"))
    async with running(EndpointStore(), FixedDiscovery("old", spec("a"))) as discoveries:
        with pytest.raises(DiscoveryError, match="discovery 'new': KeyError: 'port'"):
            await discoveries.prepare(new)


@pytest.mark.looptime
async def test_discovery_that_finds_nothing_out_in_time_leaves_the_old_one(
    looptime: object,
) -> None:
    store = EndpointStore()
    old, new = FixedDiscovery("old", spec("a")), FixedDiscovery("new")
    async with running(store, old) as discoveries:
        with pytest.raises(DiscoveryError, match="'new': no report within 10 s"):
            await discoveries.prepare(new)
        assert looptime == pytest.approx(10.0)
        await turns()
        assert old.is_running
        assert not new.is_running


async def test_clash_with_a_fixed_discovery_leaves_everything_as_it_was() -> None:
    store = EndpointStore()
    old, new = FixedDiscovery("old", spec("a")), FixedDiscovery("new", spec("f"))
    async with running(store, old, FixedDiscovery("fixed", spec("f"))) as discoveries:
        before = store.snapshot
        await discoveries.prepare(new)
        with pytest.raises(DuplicateEndpointError):
            discoveries.use(new)
        await turns()
        assert store.snapshot is before
        assert old.is_running
        assert not new.is_running


async def test_clash_of_one_of_several_reports_leaves_everything_as_it_was() -> None:
    class Twofold(FixedDiscovery):
        async def run(self, sink: EndpointSink) -> None:
            sink.replace_endpoints("first", [spec("b")])
            sink.replace_endpoints("second", [spec("f")])
            await super().run(sink)

    store = EndpointStore()
    old, new = FixedDiscovery("old", spec("a")), Twofold("new")
    async with running(store, old, FixedDiscovery("fixed", spec("f"))) as discoveries:
        before = store.snapshot
        await discoveries.prepare(new)
        with pytest.raises(DuplicateEndpointError):
            discoveries.use(new)
        assert store.snapshot is before
        await turns()
        assert old.is_running


async def test_later_fault_of_a_discovery_is_reported_and_its_endpoints_stay(logs: Logs) -> None:
    store = EndpointStore()
    chosen = FixedDiscovery("d", spec("a"))
    async with running(store, chosen):
        chosen.news.put_nowait(RuntimeError("bug"))
        await turns()
        assert names(store) == ["a"]
    assert "discovery failed, its last endpoints stay" in str(logs.entries)


async def test_first_look_that_fails_at_the_start_is_raised() -> None:
    chosen = FixedDiscovery("d")
    chosen.news.put_nowait(DiscoveryError("no such file"))
    with pytest.raises(ExceptionGroup) as caught:
        await Discoveries(EndpointStore(), (), chosen).run()
    assert [str(error) for error in caught.value.exceptions] == ["no such file"]
