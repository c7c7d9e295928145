"""Messages between workers arrive in order, and an absent worker delays no other."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from structlog.testing import capture_logs

from epp.workers.links import Links


class Mailbox:
    """What a worker has received."""

    def __init__(self, links: Links, subject: str = "news") -> None:
        self.messages: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        links.receive(subject, lambda sender, value: self.messages.put_nowait((sender, value)))


@asynccontextmanager
async def linked(*all_links: Links) -> AsyncIterator[None]:
    """Run links until every one is connected to all others."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in all_links]
        while any(each.connected < len(all_links) - 1 for each in all_links):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        yield
        for each in running:
            each.cancel()


async def test_each_worker_gets_the_messages_of_the_others_in_order(tmp_path: Path) -> None:
    made = [Links(tmp_path, index, 3) for index in range(3)]
    boxes = [Mailbox(each) for each in made]
    async with linked(*made):
        for number in range(3):
            made[0].post("news", number)
        made[2].post("news", {"large": b"x" * 300_000})
        for box in boxes[1:]:
            own = [each for each in [await box.messages.get() for _ in range(3)] if each[0] == 0]
            assert own == [(0, number) for number in range(len(own))]
        assert (await boxes[0].messages.get())[1]["large"] == b"x" * 300_000
    assert [each.lost for each in made] == [0, 0, 0]


async def test_a_worker_that_comes_back_is_greeted_and_gets_messages_again(tmp_path: Path) -> None:
    one, other = Links(tmp_path, 0, 2), Links(tmp_path, 1, 2)
    one.greet_with(lambda: [("news", "all that I know")])
    box = Mailbox(other)
    async with linked(one, other):
        assert await box.messages.get() == (0, "all that I know")
    again = Links(tmp_path, 1, 2)
    box = Mailbox(again)
    async with linked(one, again):
        one.post("news", "more")
        assert await box.messages.get() == (0, "all that I know")
        assert await box.messages.get() == (0, "more")


async def test_a_message_to_one_worker_reaches_no_other_one(tmp_path: Path) -> None:
    made = [Links(tmp_path, index, 3) for index in range(3)]
    boxes = [Mailbox(each) for each in made]
    async with linked(*made):
        assert made[0].send(1, "news", "for 1")
        made[0].post("news", "for all")
        assert made[0].send(2, "news", "for 2")
        got = [[(await box.messages.get())[1] for _ in range(2)] for box in boxes[1:]]
    assert [sorted(each) for each in got] == [["for 1", "for all"], ["for 2", "for all"]]
    assert not made[0].send(1, "news", "it is away")


async def test_both_sides_learn_when_a_worker_comes_and_goes(tmp_path: Path) -> None:
    one, other = Links(tmp_path, 0, 2), Links(tmp_path, 1, 2)
    events: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    one.when_connected(lambda worker: events.put_nowait(("came", worker)))
    one.when_lost(lambda worker: events.put_nowait(("went", worker)))
    staying = asyncio.create_task(one.run())
    leaving = asyncio.create_task(other.run())
    assert await events.get() == ("came", 1)
    box = Mailbox(one)
    while not other.connected:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
    other.post("news", "here")
    await box.messages.get()
    leaving.cancel()
    assert [await events.get() for _ in range(2)] == [("went", 1)] * 2  # one for each direction
    staying.cancel()
    await asyncio.gather(staying, leaving, return_exceptions=True)
    assert events.empty()


def test_a_message_to_a_worker_whose_connection_has_just_ended_raises_nothing(
    tmp_path: Path,
) -> None:
    async def post() -> Sequence[Mapping[str, Any]]:
        faults: list[Mapping[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        one, other = Links(tmp_path, 0, 2), Links(tmp_path, 1, 2)
        lost = asyncio.Event()
        one.when_lost(lambda _: lost.set())
        async with linked(one, other):
            one._connected[1].abort()
            for number in range(3):  # uvloop closes the connection in one of these turns
                one.post("news", number)
                assert one.send(1, "news", number) == (1 in one._connected)
                await asyncio.sleep(0)
            await lost.wait()
        return faults

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(post()) == []


async def test_without_others_a_message_goes_nowhere(tmp_path: Path) -> None:
    links = Links(tmp_path, 0, 2)
    links.post("news", 1)
    task = asyncio.create_task(links.run())
    await asyncio.sleep(0)
    links.post("news", 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert links.lost == 0


async def test_a_worker_that_does_not_read_loses_messages(tmp_path: Path) -> None:
    links = Links(tmp_path, 0, 2)
    silent = NeverReads()
    path = tmp_path / "links-1"
    server = await asyncio.get_running_loop().create_unix_server(lambda: silent, path)
    task = asyncio.create_task(links.run())
    try:
        while not links.connected:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        for _ in range(20):
            links.post("news", b"x" * (1 << 20))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert 10 <= links.lost < 20
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        silent.transport.abort()
        server.close()


async def test_a_worker_that_reads_again_is_greeted_again(tmp_path: Path) -> None:
    one, other = Links(tmp_path, 0, 2), Links(tmp_path, 1, 2)
    one.greet_with(lambda: [("state", "all that I know")])
    news, state = Mailbox(other), Mailbox(other, "state")
    async with linked(one, other):
        await state.messages.get()
        (reading,) = [each._transport for each in other._incoming.values()]
        assert isinstance(reading, asyncio.Transport)
        reading.pause_reading()
        while not one.lost:
            one.post("news", b"x" * (1 << 20))
            await asyncio.sleep(0)
        assert state.messages.empty()
        reading.resume_reading()
        while state.messages.empty():
            one.post("news", "more")
            await asyncio.sleep(0.01)
        assert await state.messages.get() == (0, "all that I know")
        one.post("news", "last")
        while (await news.messages.get())[1] != "last":
            pass
        assert state.messages.empty()


class NeverReads(asyncio.Protocol):
    """Accepts a connection, and leaves what comes in the socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self.transport = transport


async def test_a_receiver_that_fails_does_not_end_the_connection(tmp_path: Path) -> None:
    one, other = Links(tmp_path, 0, 2), Links(tmp_path, 1, 2)

    def fail(_: int, value: object) -> None:
        raise KeyError(value)

    other.receive("bad", fail)
    box = Mailbox(other)
    with capture_logs() as logs:
        async with linked(one, other):
            one.post("bad", 1)
            one.post("unknown", 2)
            one.post("news", 3)
            assert await box.messages.get() == (0, 3)
    assert [each["event"] for each in logs] == ["message of a worker failed"]


class _Unreadable:
    """Can be pickled, but not read again."""

    def __reduce__(self) -> tuple[object, ...]:
        return (int, ("no number",))


async def test_messages_that_cannot_be_read_do_not_end_the_connection(tmp_path: Path) -> None:
    one, other = Links(tmp_path, 0, 2), Links(tmp_path, 1, 2)
    lost: list[int] = []
    other.when_lost(lost.append)
    box = Mailbox(other)
    with capture_logs() as logs:
        async with linked(one, other):
            one.post("news", _Unreadable())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            one.post("news", 2)
            assert await box.messages.get() == (0, 2)
            assert lost == []
    assert [each["event"] for each in logs] == ["messages of a worker cannot be read"]
