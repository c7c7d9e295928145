"""Event feeds: one encoding for all viewers, no work without viewers, and slow or many viewers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from structlog.testing import capture_logs

from epp.observability.event_feeds import EventFeeds, EventSource, event
from epp.observability.loop_calls import LoopCalls, LoopStoppedError

pytestmark = pytest.mark.looptime


class Counter:
    """A source whose state is a number; each step adds one."""

    def __init__(self) -> None:
        self.number = 0
        self.begun = self.ended = self.snapshots = 0
        self.error: Exception | None = None
        self.has_news = True

    async def begin(self, calls: LoopCalls) -> None:
        self.begun += 1

    def snapshot(self) -> bytes:
        self.snapshots += 1
        return b"all %d" % self.number

    async def advance(self, calls: LoopCalls) -> bytes | None:
        if self.error is not None:
            raise self.error
        self.number += 1
        return b"then %d" % self.number if self.has_news else None

    def end(self) -> None:
        self.ended += 1


def feeds_of(sources: dict[str, EventSource], **settings: float) -> EventFeeds:
    calls = LoopCalls(asyncio.get_running_loop())
    return EventFeeds(lambda: sources, calls, **{"interval_seconds": 1.0, **settings})  # type: ignore[arg-type] # a count is among them


def opened(feeds: EventFeeds, name: str = "events") -> AsyncGenerator[bytes, None]:
    response = feeds.respond(name)
    assert response is not None
    assert response.stream is not None
    return response.stream()


async def test_a_viewer_gets_a_snapshot_then_the_changes() -> None:
    async with aclosing(opened(feeds_of({"events": Counter()}))) as viewer:
        assert [await anext(viewer) for _ in range(3)] == [b"all 0", b"then 1", b"then 2"]


async def test_nothing_is_made_without_a_viewer() -> None:
    source = Counter()
    feeds = feeds_of({"events": source})
    assert feeds.respond("events") is not None
    await asyncio.sleep(10)
    assert (source.begun, source.number) == (0, 0)
    async with aclosing(opened(feeds)) as viewer:
        await anext(viewer)
    await asyncio.sleep(10)
    assert (source.begun, source.ended, source.number) == (1, 1, 0)


async def test_viewers_share_what_is_made() -> None:
    source = Counter()
    feeds = feeds_of({"events": source})
    async with aclosing(opened(feeds)) as first, aclosing(opened(feeds)) as second:
        assert await anext(first) == await anext(second) == b"all 0"
        assert await anext(first) == await anext(second) == b"then 1"
        async with aclosing(opened(feeds)) as third, aclosing(opened(feeds)) as fourth:
            assert await anext(third) == await anext(fourth) == b"all 1", "at once"
        assert source.snapshots == 2
        assert source.begun == 1


async def test_a_source_may_ask_for_a_new_snapshot() -> None:
    source = Counter()
    async with aclosing(opened(feeds_of({"events": source}))) as viewer:
        await anext(viewer)
        source.has_news = False
        assert await anext(viewer) == b"all 1"


async def test_a_slow_viewer_gets_a_new_snapshot_instead_of_what_it_missed() -> None:
    source = Counter()
    feeds = feeds_of({"events": source})
    async with aclosing(opened(feeds)) as slow, aclosing(opened(feeds)) as quick:
        await anext(slow)
        assert [await anext(quick) for _ in range(8)][-1] == b"then 7"
        following = await anext(slow)
        assert following.startswith(b"all ")
        assert await anext(slow) == b"then %d" % (int(following.split()[1]) + 1), "no gap"


async def test_the_number_of_viewers_is_bounded_over_all_feeds() -> None:
    feeds = feeds_of({"events": Counter(), "pools/a/events": Counter()}, max_viewers=2)
    async with aclosing(opened(feeds)) as first, aclosing(opened(feeds, "pools/a/events")) as other:
        await anext(first)
        await anext(other)
        refused = feeds.respond("events")
        assert refused is not None
        assert refused.status == 503
        assert b"2 viewers already" in refused.body
    assert opened(feeds) is not None


async def test_what_is_no_feed_is_left_to_the_pages() -> None:
    assert feeds_of({"events": Counter()}).respond("endpoints") is None


async def test_a_feed_ends_with_its_source() -> None:
    sources: dict[str, EventSource] = {"events": Counter()}
    async with aclosing(opened(feeds_of(sources))) as viewer:
        await anext(viewer)
        sources["events"] = Counter()
        assert [each async for each in viewer] == [b"then 1"]


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        pytest.param(LookupError("broken"), ["event feed failed"], id="is logged"),
        pytest.param(LoopStoppedError("stopped"), [], id="is the end of the process"),
    ],
)
async def test_a_source_that_fails(error: Exception, logged: list[str]) -> None:
    source = Counter()
    feeds = feeds_of({"events": source})
    async with aclosing(opened(feeds)) as viewer:
        await anext(viewer)
        source.error = error
        with capture_logs() as logs:
            assert [each async for each in viewer] == []
        assert [line["event"] for line in logs] == logged
    source.error = None
    async with aclosing(opened(feeds)) as viewer:
        assert await anext(viewer) == b"all 0", "the next viewer begins anew"


async def test_a_source_that_ended_while_its_viewer_waited_to_begin() -> None:
    sources: dict[str, EventSource] = {"events": Counter()}
    viewer = opened(feeds_of(sources))
    sources.clear()
    assert [each async for each in viewer] == []


def test_an_event_is_one_line_of_json_whatever_the_text() -> None:
    made = event("change", {"name": "a\nb\r\n\ndata: c\u2028"})
    assert made.count(b"\n") == 3
    assert made.startswith(b"event: change\ndata: {")
    assert made.endswith(b"}\n\n")


async def test_calls_raise_what_the_function_raised() -> None:
    def fail() -> object:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        await LoopCalls(asyncio.get_running_loop()).call(fail)
