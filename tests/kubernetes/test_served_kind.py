"""Kinds that the API server does not serve yet or any more, or that are still unknown."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from log_watch import Logs

from epp.kubernetes.api import ApiClient, Resource
from epp.kubernetes.served_kind import LOOK_SECONDS, ServedKind

from .fake_api import FakeApi
from .fake_state import RefusedError
from .followed import Thing, briefly

GIZMOS = Resource("example.org", "v1", "gizmos", "Gizmo")
"""The fake does not have them."""


class Kind:
    """A kind that is followed, and how often it has changed."""

    def __init__(self, client: ApiClient, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.calls = 0
        self._news = asyncio.Event()
        self.kind = ServedKind(
            client,
            GIZMOS,
            Thing,
            changed=self._changed,
            namespace="d",
            sleep=sleep,
            rng=random.Random(1),
        )

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.kind.objects}

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()

    def _changed(self) -> None:
        self.calls += 1
        self._news.set()


@asynccontextmanager
async def following(
    client: ApiClient, sleep: Callable[[float], Awaitable[None]] = briefly
) -> AsyncIterator[Kind]:
    """Follow gizmos; look for them every 10 ms."""
    made = Kind(client, sleep)
    task = asyncio.create_task(made.kind.run())
    try:
        yield made
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def looks(api: FakeApi) -> int:
    """Return how often the API server was asked for its kinds."""
    return sum(each.path == GIZMOS.group_document.path() for each in api.requests)


async def test_a_kind_that_is_there_is_followed(api: FakeApi, client: ApiClient) -> None:
    api.serve(GIZMOS)
    api.create(GIZMOS, "a")
    async with following(client) as gizmos:
        assert (gizmos.kind.is_served, gizmos.kind.is_known) == (None, False)
        await gizmos.until(lambda: gizmos.kind.is_known)
        assert (gizmos.kind.is_served, gizmos.names) == (True, {"a"})
        api.create(GIZMOS, "b")
        await gizmos.until(lambda: gizmos.names == {"a", "b"})


async def test_a_kind_that_is_installed_later_is_found(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    async with following(client) as gizmos:
        await gizmos.until(lambda: gizmos.kind.is_known)
        assert (gizmos.kind.is_served, gizmos.names) == (False, set())
        before = looks(api)
        await api.until(lambda: looks(api) > before + 2)
        assert gizmos.calls == 1
        api.serve(GIZMOS)
        api.create(GIZMOS, "a")
        await gizmos.until(lambda: gizmos.names == {"a"})
    logged = [each for each in logs.entries if each["event"].startswith("the API server does not")]
    assert [(each["kind"], each["api_version"]) for each in logged] == [("Gizmo", "example.org/v1")]
    assert [(each["log_level"], "remedy" in each) for each in logged] == [("info", False)]


async def test_a_kind_that_is_removed_has_no_objects_and_may_come_back(
    api: FakeApi, client: ApiClient
) -> None:
    api.serve(GIZMOS)
    api.create(GIZMOS, "a")
    async with following(client) as gizmos:
        await gizmos.until(lambda: gizmos.names == {"a"})
        api.withdraw(GIZMOS)
        api.cut_watches()
        await gizmos.until(lambda: gizmos.kind.is_served is False)
        assert (gizmos.names, gizmos.kind.is_known) == (set(), True)
        assert gizmos.kind.reflector is None
        api.serve(GIZMOS)
        await gizmos.until(lambda: gizmos.names == {"a"})


async def test_a_kind_that_is_not_listed_is_there_while_its_objects_can_be_read(
    api: FakeApi, client: ApiClient
) -> None:
    api.serve(GIZMOS)
    api.create(GIZMOS, "a")
    async with following(client) as gizmos:
        await gizmos.until(lambda: gizmos.names == {"a"})
        calls, before = gizmos.calls, looks(api)
        api.withdraw(GIZMOS)  # the watch goes on
        await api.until(lambda: looks(api) > before + 2)
        assert (gizmos.kind.is_served, gizmos.names) == (True, {"a"})
        api.create(GIZMOS, "b")
        await gizmos.until(lambda: gizmos.names == {"a", "b"})
        assert gizmos.calls == calls + 1


async def test_a_server_that_is_away_at_the_start_says_nothing_of_its_kinds(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    api.faults.raw = b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n"
    async with following(client) as gizmos:
        await api.until(lambda: looks(api) > 2)
        assert (gizmos.kind.is_served, gizmos.kind.is_known, gizmos.calls) == (None, False, 0)
        api.serve(GIZMOS)
        api.create(GIZMOS, "a")
        api.faults.raw = None
        await gizmos.until(lambda: gizmos.names == {"a"})
    (line,) = (each for each in logs.entries if each["event"].startswith("kinds of the API"))
    assert line["error"].startswith("cannot get /apis/example.org/v1: 503")


async def test_a_server_that_is_away_later_changes_nothing(api: FakeApi, client: ApiClient) -> None:
    api.serve(GIZMOS)
    api.create(GIZMOS, "a")
    async with following(client) as gizmos:
        await gizmos.until(lambda: gizmos.names == {"a"})
        api.faults.raw = b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n"
        api.cut_watches()
        before = looks(api)
        await api.until(lambda: looks(api) > before + 2)
        assert (gizmos.kind.is_served, gizmos.names) == (True, {"a"})
        api.faults.raw = None
        api.create(GIZMOS, "b")
        await gizmos.until(lambda: gizmos.names == {"a", "b"})


@pytest.mark.parametrize(
    ("is_away", "shortest", "longest"),
    [(False, LOOK_SECONDS / 2, 1.5 * LOOK_SECONDS), (True, 1.0, 3.0)],
    ids=["answered", "away"],
)
async def test_the_looks_are_spread(
    api: FakeApi, client: ApiClient, is_away: bool, shortest: float, longest: float
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    if is_away:
        api.faults.refusals = [RefusedError(503, "", "")] * 100
    async with following(client, sleep):
        await api.until(lambda: looks(api) > 50)
    assert all(shortest <= each <= longest for each in waits)
    assert max(waits) - min(waits) > (longest - shortest) / 2
