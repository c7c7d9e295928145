"""Replicas of one host, over real sockets in a directory."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from epp.replication import ReplicaStateError
from epp.replication.sockets import SocketCarrier


class Heard:
    """An inbox that keeps what comes, and says when something has."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.gone: list[str] = []
        self.joins = 0
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, message: bytes) -> None:
        self.messages.append(message)
        self._note()

    def joined(self) -> None:
        self.joins += 1
        self._note()

    def left(self, replica: str) -> None:
        self.gone.append(replica)
        self._note()

    def _note(self) -> None:
        task = asyncio.ensure_future(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with self._changed, asyncio.timeout(10):
            await self._changed.wait_for(is_so)


@asynccontextmanager
async def carrying(folder: Path, name: str) -> AsyncIterator[tuple[SocketCarrier, Heard]]:
    carrier, heard = await asyncio.to_thread(SocketCarrier, folder, name), Heard()
    task = asyncio.create_task(carrier.run(heard))
    try:
        yield carrier, heard
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "replicas"


async def test_messages_reach_all_others_or_one(folder: Path) -> None:
    async with (
        carrying(folder, "a") as (a, heard_a),
        carrying(folder, "b") as (_, heard_b),
        carrying(folder, "c") as (_, heard_c),
    ):
        await heard_a.until(lambda: len(a._links) == 2)
        assert a.send(b"to all")
        assert a.send(b"to c", "c")
        long = bytes(300_000)
        assert a.send(long)
        await heard_b.until(lambda: len(heard_b.messages) == 2)
        await heard_c.until(lambda: len(heard_c.messages) == 3)
        assert heard_b.messages == [b"to all", long]
        assert heard_c.messages == [b"to all", b"to c", long]
        assert heard_a.messages == []


def test_messages_reach_all_others_or_one_on_uvloop(folder: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_messages_reach_all_others_or_one(folder))


async def test_the_end_of_a_replica_shows_at_once(folder: Path) -> None:
    async with carrying(folder, "a") as (a, heard_a):
        async with carrying(folder, "b") as (b, heard_b):
            await heard_a.until(lambda: bool(a._links))
            await heard_b.until(lambda: bool(b._links))
            b.send(b"here")
            await heard_a.until(lambda: heard_a.messages == [b"here"])
        await heard_a.until(lambda: heard_a.gone == ["b"])
        assert a.send(b"nobody hears it")
        async with carrying(folder, "b") as (_, heard_b):
            await heard_a.until(lambda: heard_a.joins == 2)
            a.send(b"again")
            await heard_b.until(lambda: heard_b.messages == [b"again"])


async def test_the_socket_of_a_killed_replica_is_removed(folder: Path) -> None:
    left = folder / "0123456789abcdef.sock"
    await asyncio.to_thread(leave_socket, left)
    async with carrying(folder, "a") as (a, heard_a), carrying(folder, "b") as (_, heard_b):
        await heard_a.until(lambda: bool(a._links))
        await heard_b.until(lambda: heard_b.joins == 1)
        assert not await asyncio.to_thread(left.exists)


async def test_a_replica_whose_socket_was_removed_listens_again(folder: Path) -> None:
    async with carrying(folder, "a") as (a, heard_a), carrying(folder, "b") as (b, heard_b):
        await heard_a.until(lambda: bool(a._links))
        await heard_b.until(lambda: bool(b._links))
        await asyncio.to_thread(a._path.unlink)
        b.send(b"on the old connection")
        await heard_a.until(lambda: heard_a.messages == [b"on the old connection"])
        async with carrying(folder, "c") as (c, heard_c):
            await heard_c.until(lambda: len(c._links) == 2)
            c.send(b"from a new replica", "a")
            await heard_a.until(lambda: heard_a.messages[1:] == [b"from a new replica"])
        assert heard_b.gone == ["c"]


async def test_replicas_whose_directory_was_removed_make_it_again(folder: Path) -> None:
    with capture_logs() as logs:
        async with carrying(folder, "a") as (a, heard_a), carrying(folder, "b") as (b, heard_b):
            await heard_a.until(lambda: bool(a._links))
            await heard_b.until(lambda: bool(b._links))
            await asyncio.to_thread(shutil.rmtree, folder)
            await heard_a.until(lambda: heard_a.gone == ["b"])
            await heard_b.until(lambda: heard_b.gone == ["a"] and heard_b.joins == 2)
            b.send(b"again")
            await heard_a.until(lambda: heard_a.messages == [b"again"])
    assert (await asyncio.to_thread(folder.stat)).st_mode & 0o777 == 0o700
    events = [each["event"] for each in logs]
    for event in ("out of reach, going on without it", "in reach again"):
        assert events.count(f"replica state is {event}") == 2, events


async def test_a_replica_that_reads_nothing_gets_no_more_messages(folder: Path) -> None:
    async with carrying(folder, "a") as (a, heard_a):
        loop = asyncio.get_running_loop()
        deaf = _Deaf()
        server = await loop.create_unix_server(lambda: deaf, str(folder / "0123456789abcdef.sock"))
        await heard_a.until(lambda: bool(a._links))
        message = bytes(1 << 20)
        queued = [a.send(message) for _ in range(4)]
        assert queued[0]
        assert not queued[-1]
        assert deaf.transport is not None
        deaf.transport.abort()
        server.close()


def leave_socket(path: Path) -> None:
    """Leave the file of a socket of which no process listens."""
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))


class _Deaf(asyncio.Protocol):
    """A replica that reads nothing."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self.transport = transport


async def test_a_client_that_sends_nonsense_is_cut_off(folder: Path) -> None:
    async with carrying(folder, "a") as (a, heard_a), carrying(folder, "b") as (b, heard_b):
        await heard_a.until(lambda: bool(a._links))
        await heard_b.until(lambda: bool(b._links))
        reader, writer = await asyncio.open_unix_connection(str(a._path))
        writer.write(b"\xff" * 64)
        assert await reader.read() == b""
        writer.close()
        b.send(b"still heard")
        await heard_a.until(lambda: heard_a.messages == [b"still heard"])


def test_the_directory_is_made_for_this_user_alone(folder: Path) -> None:
    SocketCarrier(folder, "a")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ReplicaStateError, match="chmod 0700"):
        SocketCarrier(folder, "a")


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReplicaStateError, match="cannot be made"):
        SocketCarrier(tmp_path / "file", "a")


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplicaStateError, match="too long for sockets; use one of at most 85"):
        SocketCarrier(tmp_path / ("x" * 100), "a")
