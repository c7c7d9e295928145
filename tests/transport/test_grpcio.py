"""The grpc.aio transport over real connections, on asyncio's loop and on uvloop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import uvloop
from grpc import aio

from epp.transport import GrpcioServer, ListenError, StatusCode, Stream

METHOD = "/test.Service/Talk"
MIB = 1 << 20

Test = Callable[[], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Runs a coroutine on one of the two loops."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(test: Test) -> None:
        async def limited() -> None:
            async with asyncio.timeout(15):
                await test()

        with asyncio.Runner(loop_factory=factory) as runner:
            faults: list[dict[str, Any]] = []
            runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
            runner.run(limited())
            assert [fault for fault in faults if not _is_grpcs_own(fault)] == []

    return run


def _is_grpcs_own(fault: Mapping[str, Any]) -> bool:
    """grpc.aio's poller woken for a loop that another has served: harmless, and not ours."""
    poller = "PollerCompletionQueue._handle_events" in fault["message"]
    return poller and isinstance(fault["exception"], BlockingIOError)


@dataclass
class Handler:
    """Writes down what it is told and answers as the test wants."""

    stream: Stream
    headers: Mapping[str, str]
    on_message: Callable[["Handler", bytes], None]
    on_half_closed: Callable[["Handler"], None]
    on_writable: Callable[["Handler"], None]
    messages: list[bytes] = field(default_factory=list)
    half_closes: int = 0
    resets: int = 0
    writables: int = 0
    was_reset: asyncio.Event = field(default_factory=asyncio.Event)
    was_writable: asyncio.Event = field(default_factory=asyncio.Event)
    got_message: asyncio.Event = field(default_factory=asyncio.Event)

    def message(self, data: bytes) -> None:
        self.messages.append(data)
        self.got_message.set()
        self.on_message(self, data)

    def half_closed(self) -> None:
        self.half_closes += 1
        self.on_half_closed(self)

    def reset(self) -> None:
        self.resets += 1
        self.was_reset.set()

    def writable(self) -> None:
        self.writables += 1
        self.was_writable.set()
        self.on_writable(self)


@dataclass
class Service:
    """A server, a client channel and the handlers of all streams."""

    server: GrpcioServer
    port: int
    channel: aio.Channel
    handlers: list[Handler]

    def talk(self, method: str = METHOD) -> Any:
        return self.channel.stream_stream(method)()


def echo(handler: Handler, data: bytes) -> None:
    handler.stream.send(data)


def finish(handler: Handler) -> None:
    handler.stream.finish()


def nothing(*_: object) -> None:
    pass


def later(call: Callable[..., object], *args: object) -> None:
    asyncio.get_running_loop().call_later(0.02, call, *args)


@asynccontextmanager
async def serving(
    on_message: Callable[[Handler, bytes], None] = echo,
    on_half_closed: Callable[[Handler], None] = finish,
    on_writable: Callable[[Handler], None] = nothing,
    on_open: Callable[[Handler], None] = nothing,
    options: tuple[tuple[str, int], ...] = (),
) -> AsyncIterator[Service]:
    handlers: list[Handler] = []

    def opened(stream: Stream, headers: Mapping[str, str]) -> Handler:
        handler = Handler(stream, headers, on_message, on_half_closed, on_writable)
        handlers.append(handler)
        on_open(handler)
        return handler

    server = GrpcioServer({METHOD: opened}, host="127.0.0.1")
    port = await server.start()
    limits = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
    try:
        async with aio.insecure_channel(
            f"127.0.0.1:{port}", options=(*limits, *options)
        ) as channel:
            yield Service(server, port, channel, handlers)
    finally:
        await server.stop(0)


def test_messages_are_answered_at_once_in_order(run: Callable[[Test], None]) -> None:
    def twice(handler: Handler, data: bytes) -> None:
        handler.stream.send(data + b"1")
        handler.stream.send(data + b"2")

    async def test() -> None:
        async with serving(twice) as service:
            call = service.channel.stream_stream(METHOD)(metadata=(("x-a", "b"),))
            for data in (b"a", b"b", b"c"):
                await call.write(data)
                assert [await call.read(), await call.read()] == [data + b"1", data + b"2"]
            await call.done_writing()
            assert await call.read() is aio.EOF
            assert await call.code() is grpc.StatusCode.OK
            (handler,) = service.handlers
            assert handler.headers["x-a"] == "b"
            assert (handler.messages, handler.half_closes, handler.resets) == (
                [b"a", b"b", b"c"],
                1,
                0,
            )

    run(test)


def test_answers_are_sent_later_while_the_call_waits(run: Callable[[Test], None]) -> None:
    def answer(handler: Handler, data: bytes) -> None:
        later(handler.stream.send, data + b"1")
        later(handler.stream.send, data + b"2")

    async def test() -> None:
        async with serving(answer) as service:
            call = service.talk()
            for data in (b"a", b"b"):
                await call.write(data)
                assert [await call.read(), await call.read()] == [data + b"1", data + b"2"]
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

    run(test)


def test_what_is_sent_while_a_stream_opens_goes_out(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with serving(on_open=lambda handler: handler.stream.send(b"hello")) as service:
            call = service.talk()
            assert await call.read() == b"hello"
            call.cancel()
            await service.handlers[0].was_reset.wait()

    run(test)


@pytest.mark.parametrize("when", ["at once", "later"])
@pytest.mark.parametrize("code", [StatusCode.OK, StatusCode.RESOURCE_EXHAUSTED])
def test_handler_ends_the_stream_after_what_it_sent(
    run: Callable[[Test], None], when: str, code: StatusCode
) -> None:
    def end(handler: Handler) -> None:
        handler.stream.send(b"last")
        handler.stream.finish(code, "" if code is StatusCode.OK else "full")
        handler.stream.send(b"ignored")
        handler.stream.finish(StatusCode.INTERNAL)

    def answer(handler: Handler, _: bytes) -> None:
        if when == "later":
            later(end, handler)
        else:
            end(handler)

    async def test() -> None:
        async with serving(answer) as service:
            call = service.talk()
            await call.write(b"a")
            assert await call.read() == b"last"
            assert (await call.code()).value[0] == code
            assert await call.details() == ("" if code is StatusCode.OK else "full")
            assert service.handlers[0].resets == 0

    run(test)


def test_client_cancel_resets_exactly_once(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        # grpc.aio may report a half-close just before the cancel: it must not end the stream.
        async with serving(on_half_closed=nothing) as service:
            for _ in range(10):
                call = service.talk()
                await call.write(b"a")
                await call.read()
                call.cancel()
                await service.handlers[-1].was_reset.wait()
            other = service.talk()  # a round trip later nothing more has come
            await other.write(b"b")
            await other.read()
            assert [h.resets for h in service.handlers] == [1] * 10 + [0]
            other.cancel()

    run(test)


@pytest.mark.parametrize("when", ["at once", "later"])
def test_half_close_is_told_once_and_may_be_answered(
    run: Callable[[Test], None], when: str
) -> None:
    def end(handler: Handler) -> None:
        handler.stream.send(b"bye")
        handler.stream.finish()

    def half_closed(handler: Handler) -> None:
        if when == "later":
            later(end, handler)
        else:
            end(handler)

    async def test() -> None:
        async with serving(on_half_closed=half_closed) as service:
            call = service.talk()
            await call.write(b"a")
            assert await call.read() == b"a"
            await call.done_writing()
            assert await call.read() == b"bye"
            assert await call.code() is grpc.StatusCode.OK
            (handler,) = service.handlers
            assert (handler.messages, handler.half_closes, handler.resets) == ([b"a"], 1, 0)

    run(test)


def test_taken_port_is_a_listen_error(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with serving() as service:
            second = GrpcioServer({}, host="127.0.0.1", port=service.port)
            with pytest.raises(ListenError, match="another process using the port") as caught:
                await second.start()
            assert caught.value.address == f"127.0.0.1:{service.port}"
            await second.stop(0)

    run(test)


def test_unknown_method_is_unimplemented(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with serving() as service:
            for method in ("/test.Service/Other", "/other.Service/Talk"):
                assert await service.talk(method).code() is grpc.StatusCode.UNIMPLEMENTED
            assert service.handlers == []

    run(test)


def test_large_messages_pass_both_ways(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with serving() as service:
            call = service.talk()
            body = bytes(range(256)) * (12 * MIB // 256)
            await call.write(body)
            assert await call.read() == body
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

    run(test)


def test_two_hundred_streams_live_side_by_side(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with serving() as service:
            calls = [service.talk() for _ in range(200)]
            for n, call in enumerate(calls):
                await call.write(str(n).encode())
            answers = await asyncio.gather(*(call.read() for call in calls))
            assert answers == [str(n).encode() for n in range(200)]
            for call in calls:
                await call.done_writing()
            codes = await asyncio.gather(*(call.code() for call in calls))
            assert set(codes) == {grpc.StatusCode.OK}

    run(test)


def test_failing_handler_ends_its_own_stream_only(run: Callable[[Test], None]) -> None:
    def answer(handler: Handler, data: bytes) -> None:
        if data == b"bad":
            raise ZeroDivisionError
        handler.stream.send(data)

    async def test() -> None:
        async with serving(answer) as service:
            good, bad = service.talk(), service.talk()
            await good.write(b"1")
            assert await good.read() == b"1"
            await bad.write(b"bad")
            assert await bad.code() is grpc.StatusCode.INTERNAL
            assert "ZeroDivision" not in await bad.details()
            await good.write(b"2")
            assert await good.read() == b"2"
            await good.done_writing()
            assert await good.code() is grpc.StatusCode.OK
            assert sorted(h.resets for h in service.handlers) == [0, 1]

    run(test)


def test_stream_that_cannot_be_opened_is_internal(run: Callable[[Test], None]) -> None:
    def fail(_: Handler) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        async with serving(on_open=fail) as service:
            assert await service.talk().code() is grpc.StatusCode.INTERNAL

    run(test)


def test_stop_lets_open_streams_end_and_takes_no_new_ones(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with serving() as service:
            call = service.talk()
            await call.write(b"a")
            await call.read()
            stopping = asyncio.create_task(service.server.stop(10))
            assert not stopping.done()
            await call.write(b"b")
            assert await call.read() == b"b"
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
            await stopping
            assert await service.talk().code() is grpc.StatusCode.UNAVAILABLE
            assert [h.resets for h in service.handlers] == [0]

    run(test)


def test_stop_cuts_streams_after_the_grace(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with serving(on_half_closed=nothing) as service:
            call = service.talk()
            await call.write(b"a")
            await call.read()
            await service.server.stop(0.05)
            assert await call.code() is not grpc.StatusCode.OK
            await service.handlers[0].was_reset.wait()
            assert service.handlers[0].resets == 1

    run(test)


@pytest.mark.parametrize("when", ["at once", "later"])
def test_slow_reader_makes_the_stream_unwritable_until_it_reads(
    run: Callable[[Test], None], when: str
) -> None:
    seen: list[bool] = []

    def flood(handler: Handler) -> None:
        seen.append(handler.stream.is_writable)
        for _ in range(40):
            handler.stream.send(b"x" * MIB)
        seen.append(handler.stream.is_writable)

    def answer(handler: Handler, _: bytes) -> None:
        if when == "later":
            later(flood, handler)
        else:
            flood(handler)

    async def test() -> None:
        # What is sent on hearing of room goes out, too.
        async with serving(answer, on_writable=lambda h: h.stream.send(b"more")) as service:
            call = service.talk()
            await call.write(b"a")
            assert await call.read() == b"x" * MIB
            (handler,) = service.handlers
            assert seen == [True, False]
            assert not handler.stream.is_writable
            assert handler.writables == 0
            for _ in range(39):
                assert await call.read() == b"x" * MIB
            await handler.was_writable.wait()
            assert await call.read() == b"more"
            assert handler.stream.is_writable
            assert handler.writables == 1
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

    run(test)


def test_client_that_leaves_a_full_stream_resets_it(run: Callable[[Test], None]) -> None:
    def flood(handler: Handler, data: bytes) -> None:
        for _ in range(40):
            handler.stream.send(b"x" * MIB)

    async def test() -> None:
        async with serving(flood, on_half_closed=nothing) as service:
            call = service.talk()
            await call.write(b"a")
            await call.read()
            call.cancel()
            (handler,) = service.handlers
            await handler.was_reset.wait()
            handler.stream.send(b"ignored")
            handler.stream.finish()
            assert handler.resets == 1

    run(test)
