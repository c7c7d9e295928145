"""Pages are made one at a time, and shared."""

import asyncio

import pytest

from epp.observability.page_queue import PageQueue, PageQueueFullError


class Maker:
    """Makes numbered pages when it is told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Event()

    async def make(self, name: str) -> str:
        self.begun.append(name)
        await self.may_end.wait()
        return f"{name} {len(self.begun)}"

    async def ask(self, queue: PageQueue[str], name: str) -> str:
        return await queue.page(name, lambda: self.make(name))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_wait_for_the_same_page_share_it() -> None:
    queue, maker = PageQueue[str](8), Maker()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(maker.ask(queue, "a"))
        await turns()
        # It may have begun before what they want to see: they get the next one.
        later = [tasks.create_task(maker.ask(queue, "a")) for _ in range(3)]
        await turns()
        assert maker.begun == ["a"]
        maker.may_end.set()
    assert first.result() == "a 1"
    assert [task.result() for task in later] == ["a 2"] * 3
    assert maker.begun == ["a", "a"]


async def test_who_finds_the_queue_full_is_refused_at_once() -> None:
    queue, maker = PageQueue[str](2), Maker()
    async with asyncio.TaskGroup() as tasks:
        for name in ("made", "waits", "waits, too"):
            tasks.create_task(maker.ask(queue, name))
            await turns()
        with pytest.raises(PageQueueFullError):
            await maker.ask(queue, "too many")
        shared = tasks.create_task(maker.ask(queue, "waits"))
        await turns()
        maker.may_end.set()
    assert shared.result() == "waits 2"


async def test_who_leaves_takes_the_page_from_nobody() -> None:
    queue, maker = PageQueue[str](8), Maker()
    async with asyncio.TaskGroup() as tasks:
        leaves = tasks.create_task(maker.ask(queue, "a"))
        await turns()
        next_one = tasks.create_task(maker.ask(queue, "b"))
        also = tasks.create_task(maker.ask(queue, "b"))
        await turns()
        leaves.cancel()
        next_one.cancel()
        maker.may_end.set()
    assert also.result() == "b 2"


async def test_a_page_that_fails_does_so_for_all_who_wait_and_no_longer() -> None:
    queue, maker = PageQueue[str](8), Maker()
    maker.may_end.set()

    async def fail() -> str:
        raise LookupError("no page")

    asked = [queue.page("a", fail) for _ in range(2)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [repr(each) for each in results] == ["LookupError('no page')"] * 2
    assert await maker.ask(queue, "a") == "a 1"
