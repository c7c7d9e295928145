"""Only polls that take too long are cancelled, all by one timer."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from epp.data_layer.errors import ScrapeConnectError, ScrapeTimeoutError
from epp.data_layer.plugins import Page
from epp.data_layer.polls import Polls
from epp.data_layer.scrape_pace import PoolPace, ScrapePace
from epp.data_layer.scrape_state import ScrapeState
from epp.scheduling import Endpoint

pytestmark = pytest.mark.looptime

PAGE = Page(b"x", 0.0)


class Client:
    def __init__(self, get: Callable[[], Awaitable[Page]]) -> None:
        self._get = get

    async def get(self) -> Page:
        return await self._get()

    def close(self) -> None:
        """Nothing to close."""


def after(seconds: float) -> Client:
    async def get() -> Page:
        await asyncio.sleep(seconds)
        return PAGE

    return Client(get)


def make_state() -> ScrapeState:
    return ScrapeState(Endpoint("ns/a", "10.0.0.1:80"), "source", ScrapePace(0.05, PoolPace()))


def make_polls() -> Polls:
    return Polls(1.0, asyncio.get_running_loop().time)


async def test_a_page_in_time_is_returned_and_the_poll_forgotten() -> None:
    polls, state = make_polls(), make_state()
    poll = asyncio.create_task(polls.poll(state, after(0.9)))
    await asyncio.sleep(0.5)
    assert list(polls) == [(state, 0.0)]
    assert await poll is PAGE
    assert list(polls) == []


async def test_each_poll_has_the_whole_limit_and_none_has_more() -> None:
    polls, now = make_polls(), asyncio.get_running_loop().time
    ended: list[float] = []

    async def poll(begins_at: float) -> None:
        await asyncio.sleep(begins_at)
        with pytest.raises(ScrapeTimeoutError, match=r"no page within 1\.0 s"):
            await polls.poll(make_state(), after(60))
        ended.append(round(now(), 6))

    await asyncio.gather(*(poll(at) for at in (0.0, 0.3, 0.9, 2.5)))
    assert ended == [1.0, 1.3, 1.9, 3.5]


async def test_a_poll_that_fails_is_forgotten_with_its_own_error() -> None:
    async def fail() -> Page:
        raise ScrapeConnectError("refused")

    polls = make_polls()
    with pytest.raises(ScrapeConnectError, match="refused"):
        await polls.poll(make_state(), Client(fail))
    assert list(polls) == []


@pytest.mark.parametrize("cancelled_at", [0.5, 1.0])
async def test_a_poll_cancelled_from_outside_is_no_timeout(cancelled_at: float) -> None:
    polls = make_polls()
    task = asyncio.create_task(polls.poll(make_state(), after(60)))
    asyncio.get_running_loop().call_later(cancelled_at, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert list(polls) == []


async def test_a_late_client_that_goes_on_leaves_its_task_usable() -> None:
    async def get() -> Page:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(5)  # this is not cancelled again
        return PAGE

    polls = make_polls()
    assert await polls.poll(make_state(), Client(get)) is PAGE
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_no_timer_is_left_of_polls_that_are_over() -> None:
    polls = make_polls()
    await polls.poll(make_state(), after(0.1))
    polls.close()
    polls.close()
    await polls.poll(make_state(), after(0.95))  # and later ones have one again
    with pytest.raises(ScrapeTimeoutError):
        await polls.poll(make_state(), after(2))
