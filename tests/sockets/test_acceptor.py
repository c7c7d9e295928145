"""Accepting on both event loops, with and without free descriptors."""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Coroutine

import pytest
import uvloop
from structlog.testing import capture_logs

from epp.sockets import Acceptor

Runner = Callable[[Callable[[], Coroutine[None, None, None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test())

    return run


class Failing(socket.socket):
    """A listening socket that fails with each of ``errors`` before it accepts."""

    errors: list[int]
    accepts = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.accepts += 1
        if self.errors:
            raise OSError(self.errors.pop(0), "out of luck")
        return super().accept()


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        transport.write(b"hello")


async def greeted(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read(5)
    finally:
        writer.close()
        await writer.wait_closed()


def listening(*errors: int) -> Failing:
    made = Failing(socket.AF_INET, socket.SOCK_STREAM)
    made.errors = list(errors)
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


async def served(
    bound: Failing,
    test: Callable[[Acceptor, int], Awaitable[None]],
    *,
    admit: Callable[[], bool] = lambda: True,
    exhausted: Callable[[], None] = lambda: None,
) -> None:
    acceptor = Acceptor("test", Greeting, admit=admit, exhausted=exhausted)
    acceptor.start([bound])
    port: int = bound.getsockname()[1]
    try:
        await test(acceptor, port)
    finally:
        acceptor.close()
        await acceptor.settled()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_connection_waits_until_there_is_a_descriptor(run: Runner, error: int) -> None:
    bound = listening(error, error)
    freed: list[str] = []

    async def connect(acceptor: Acceptor, port: int) -> None:
        assert await greeted(port) == b"hello"
        assert acceptor.pauses == 2

    async def test() -> None:
        await served(bound, connect, exhausted=lambda: freed.append("asked"))

    with capture_logs() as logs:
        run(test)
    assert freed == ["asked"] * 2
    # Each pause is one attempt: a busy loop would have made thousands.
    assert bound.accepts <= 5
    (line,) = logs
    assert line["event"] == "connections could not be accepted, they wait"
    assert (line["port"], line["pauses"]) == ("test", 1)


def test_an_error_of_one_connection_does_not_delay_others(run: Runner) -> None:
    bound = listening(errno.ECONNABORTED, errno.EPROTO)

    async def connect(acceptor: Acceptor, port: int) -> None:
        assert await greeted(port) == b"hello"
        assert acceptor.pauses == 0

    run(lambda: served(bound, connect))


def test_an_unknown_error_closes_no_connections(run: Runner) -> None:
    bound = listening(errno.EIO)
    freed: list[str] = []

    async def connect(acceptor: Acceptor, port: int) -> None:
        assert await greeted(port) == b"hello"
        assert acceptor.pauses == 1

    with capture_logs():
        run(lambda: served(bound, connect, exhausted=lambda: freed.append("asked")))
    assert freed == []


def test_a_refused_connection_is_closed(run: Runner) -> None:
    async def connect(acceptor: Acceptor, port: int) -> None:
        assert await greeted(port) == b""
        assert acceptor.pending == {}

    run(lambda: served(listening(), connect, admit=lambda: False))


def test_a_pause_ends_with_the_acceptor(run: Runner) -> None:
    bound = listening(errno.EMFILE)
    paused = asyncio.Event()

    async def connect(acceptor: Acceptor, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)):
            await paused.wait()

    with capture_logs():
        run(lambda: served(bound, connect, exhausted=paused.set))
    assert bound.fileno() == -1


def test_a_failing_protocol_factory_is_logged_and_the_connection_closed(run: Runner) -> None:
    def make() -> asyncio.Protocol:
        raise ZeroDivisionError

    async def test() -> None:
        bound = listening()
        acceptor = Acceptor("test", make, admit=lambda: True)
        acceptor.start([bound])
        assert await greeted(bound.getsockname()[1]) == b""
        acceptor.close()
        await acceptor.settled()

    with capture_logs() as logs:
        run(test)
    assert [line["event"] for line in logs] == ["connection could not be served"]
