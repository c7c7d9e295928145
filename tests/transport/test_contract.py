"""The contract of the transport interface, on each transport and event loop.

The client is grpcio (C core).
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import get_args

import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs

from epp.transport import ListenError, StatusCode
from transport.contract import (
    KIB,
    METHOD,
    MIB,
    Handler,
    Loop,
    Rig,
    Service,
    Transport,
    all_of,
    echo,
    finish,
    later,
    nothing,
)


@pytest.fixture(
    params=[
        Rig(transport, loop)
        for transport, loop in itertools.product(get_args(Transport), get_args(Loop))
    ],
    ids=lambda rig: f"{rig.transport}-{rig.loop}",
)
def rig(request: pytest.FixtureRequest) -> Rig:
    """One of the transports on one of the loops."""
    made: Rig = request.param
    return made


def test_messages_are_answered_at_once_in_order(rig: Rig) -> None:
    def twice(handler: Handler, data: bytes) -> None:
        handler.stream.send(data + b"1")
        handler.stream.send(data + b"2")

    async def test() -> None:
        async with rig.serving(twice) as service:
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

    rig.run(test)


def test_responses_are_sent_later_while_the_call_waits(rig: Rig) -> None:
    def respond(handler: Handler, data: bytes) -> None:
        later(handler.stream.send, data + b"1")
        later(handler.stream.send, data + b"2")

    async def test() -> None:
        async with rig.serving(respond) as service:
            call = service.talk()
            for data in (b"a", b"b"):
                await call.write(data)
                assert [await call.read(), await call.read()] == [data + b"1", data + b"2"]
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

    rig.run(test)


def test_messages_sent_while_a_stream_opens_are_delivered(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving(
            # grpc.aio may report a half-close just before the cancel: it must not end the stream.
            on_half_closed=nothing,
            on_open=lambda handler: handler.stream.send(b"hello"),
        ) as service:
            call = service.talk()
            assert await call.read() == b"hello"
            call.cancel()
            await service.handlers[0].was_reset.wait()

    rig.run(test)


@pytest.mark.parametrize("when", ["at once", "later"])
@pytest.mark.parametrize("code", [StatusCode.OK, StatusCode.RESOURCE_EXHAUSTED])
def test_handler_ends_the_stream_after_what_it_sent(rig: Rig, when: str, code: StatusCode) -> None:
    def end(handler: Handler) -> None:
        handler.stream.send(b"last")
        handler.stream.finish(code, "" if code is StatusCode.OK else "full")
        handler.stream.send(b"ignored")
        handler.stream.finish(StatusCode.INTERNAL)

    def respond(handler: Handler, _: bytes) -> None:
        if when == "later":
            later(end, handler)
        else:
            end(handler)

    async def test() -> None:
        async with rig.serving(respond) as service:
            call = service.talk()
            await call.write(b"a")
            assert await call.read() == b"last"
            assert (await call.code()).value[0] == code
            assert await call.details() == ("" if code is StatusCode.OK else "full")
            assert service.handlers[0].resets == 0

    rig.run(test)


def test_client_cancel_resets_exactly_once(rig: Rig) -> None:
    async def test() -> None:
        # grpc.aio may report a half-close just before the cancel: it must not end the stream.
        async with rig.serving(on_half_closed=nothing) as service:
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

    rig.run(test)


@pytest.mark.parametrize("when", ["at once", "later"])
def test_half_close_is_reported_once_and_may_be_answered(rig: Rig, when: str) -> None:
    def end(handler: Handler) -> None:
        handler.stream.send(b"bye")
        handler.stream.finish()

    def half_closed(handler: Handler) -> None:
        if when == "later":
            later(end, handler)
        else:
            end(handler)

    async def test() -> None:
        async with rig.serving(on_half_closed=half_closed) as service:
            call = service.talk()
            await call.write(b"a")
            assert await call.read() == b"a"
            await call.done_writing()
            assert await call.read() == b"bye"
            assert await call.code() is grpc.StatusCode.OK
            (handler,) = service.handlers
            assert (handler.messages, handler.half_closes, handler.resets) == ([b"a"], 1, 0)

    rig.run(test)


def test_port_in_use_is_a_listen_error(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving() as service:
            second = rig.make_server({}, port=service.port)
            with pytest.raises(ListenError, match="another process using the port") as caught:
                await second.start()
            assert caught.value.address == f"127.0.0.1:{service.port}"
            await second.stop(0)

    rig.run(test)


def test_unknown_method_is_unimplemented(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving() as service:
            for method in ("/test.Service/Other", "/other.Service/Talk"):
                assert await service.talk(method).code() is grpc.StatusCode.UNIMPLEMENTED
            assert service.handlers == []

    rig.run(test)


@pytest.mark.parametrize(
    "size", [KIB, 64 * KIB, MIB, 12 * MIB], ids=["1 KB", "64 KB", "1 MB", "12 MB"]
)
def test_messages_of_any_size_pass_both_ways(rig: Rig, size: int) -> None:
    async def test() -> None:
        async with rig.serving() as service:
            call = service.talk()
            body = bytes(range(256)) * (size // 256)
            for _ in range(2):
                await call.write(body)
                assert await call.read() == body
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

    rig.run(test)


def test_large_messages_of_several_streams_pass_at_once(rig: Rig) -> None:
    async def talk(service: Service, fill: int) -> None:
        call = service.talk()
        body = bytes((fill,)) * (2 * MIB)
        await call.write(body)
        await call.done_writing()
        assert await all_of(call) == ([body], grpc.StatusCode.OK)

    async def test() -> None:
        async with rig.serving() as service:
            await asyncio.gather(*(talk(service, fill) for fill in range(8)))

    rig.run(test)


def test_paused_stream_blocks_its_client_and_no_other(rig: Rig) -> None:
    sent = [bytes((number,)) * (256 * KIB) for number in range(64)]

    def respond(handler: Handler, data: bytes) -> None:
        if data == b"pause":
            handler.stream.pause_reading()
        if len(data) < KIB:
            echo(handler, data)

    async def test() -> None:
        async with rig.serving(respond) as service:
            paused, other = service.talk(), service.talk()
            await paused.write(b"pause")
            assert await paused.read() == b"pause"

            async def write() -> None:
                for message in sent:
                    await paused.write(message)
                await paused.done_writing()

            writing = asyncio.create_task(write())
            for _ in range(50):
                await other.write(b"ping")
                assert await other.read() == b"ping"
            (handler,) = [each for each in service.handlers if b"pause" in each.messages]
            assert not writing.done()
            assert len(handler.messages) < len(sent)
            handler.stream.resume_reading()
            await writing
            assert await paused.code() is grpc.StatusCode.OK
            assert handler.messages == [b"pause", *sent]
            other.cancel()

    rig.run(test)


@pytest.mark.parametrize("when", ["it ends", "its client leaves"])
def test_paused_stream_may_end(rig: Rig, when: str) -> None:
    def respond(handler: Handler, _: bytes) -> None:
        handler.stream.pause_reading()
        echo(handler, b"paused")

    async def test() -> None:
        async with rig.serving(respond) as service:
            call = service.talk()
            await call.write(b"a")
            assert await call.read() == b"paused"
            (handler,) = service.handlers
            if when == "it ends":
                handler.stream.finish()
                assert await call.code() is grpc.StatusCode.OK
            else:
                call.cancel()
                await handler.was_reset.wait()
            handler.stream.resume_reading()
            assert handler.resets == (when != "it ends")

    rig.run(test)


@pytest.mark.parametrize("count", [1, 300])
def test_streams_are_concurrent(rig: Rig, count: int) -> None:
    async def test() -> None:
        async with rig.serving() as service:
            calls = [service.talk() for _ in range(count)]
            for n, call in enumerate(calls):
                await call.write(str(n).encode())
            responses = await asyncio.gather(*(call.read() for call in calls))
            assert responses == [str(n).encode() for n in range(count)]
            assert len(service.handlers) == count
            for call in calls:
                await call.done_writing()
            codes = await asyncio.gather(*(call.code() for call in calls))
            assert set(codes) == {grpc.StatusCode.OK}
            assert {(h.half_closes, h.resets) for h in service.handlers} == {(1, 0)}

    rig.run(test)


def test_failing_handler_ends_its_own_stream_only(rig: Rig) -> None:
    def respond(handler: Handler, data: bytes) -> None:
        if data == b"bad":
            raise ZeroDivisionError
        handler.stream.send(data)

    async def test() -> None:
        async with rig.serving(respond) as service:
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

    rig.run(test)


def test_stream_that_cannot_be_opened_is_internal(rig: Rig) -> None:
    def fail(_: Handler) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        async with rig.serving(on_open=fail) as service:
            assert await service.talk().code() is grpc.StatusCode.INTERNAL

    rig.run(test)


def test_stop_lets_open_streams_end_and_accepts_no_new_ones(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving() as service:
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

    rig.run(test)


def test_stop_aborts_streams_after_the_grace_period(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving(on_half_closed=nothing) as service:
            call = service.talk()
            await call.write(b"a")
            await call.read()
            await service.server.stop(0.05)
            assert await call.code() is not grpc.StatusCode.OK
            await service.handlers[0].was_reset.wait()
            assert service.handlers[0].resets == 1

    rig.run(test)


@pytest.mark.parametrize("when", ["at once", "later"])
def test_slow_reader_makes_the_stream_unwritable_until_it_reads(rig: Rig, when: str) -> None:
    seen: list[bool] = []

    def flood(handler: Handler) -> None:
        seen.append(handler.stream.is_writable)
        for _ in range(40):
            handler.stream.send(b"x" * MIB)
        seen.append(handler.stream.is_writable)

    def respond(handler: Handler, _: bytes) -> None:
        if when == "later":
            later(flood, handler)
        else:
            flood(handler)

    def go_on(handler: Handler) -> None:
        # The stream may have been writable in between; messages sent then are delivered, too.
        if seen == [True, False]:
            seen.append(handler.stream.is_writable)
            handler.stream.send(b"more")

    async def test() -> None:
        async with rig.serving(respond, on_writable=go_on) as service:
            call = service.talk()
            await call.write(b"a")
            assert await call.read() == b"x" * MIB
            (handler,) = service.handlers
            assert seen == [True, False]
            assert not handler.stream.is_writable
            before = handler.writables
            for _ in range(39):
                assert await call.read() == b"x" * MIB
            assert await call.read() == b"more"
            assert seen == [True, False, True]
            assert handler.stream.is_writable
            assert handler.writables == before + 1
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

    rig.run(test)


def test_client_that_abandons_a_full_stream_resets_it(rig: Rig) -> None:
    def flood(handler: Handler, data: bytes) -> None:
        for _ in range(40):
            handler.stream.send(b"x" * MIB)

    async def test() -> None:
        async with rig.serving(flood, on_half_closed=nothing) as service:
            call = service.talk()
            await call.write(b"a")
            await call.read()
            call.cancel()
            (handler,) = service.handlers
            await handler.was_reset.wait()
            handler.stream.send(b"ignored")
            handler.stream.finish()
            assert handler.resets == 1

    rig.run(test)


# --- aborts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when", ["before a message", "before the response", "during the responses"]
)
def test_cancelled_call_resets_its_handler_once(rig: Rig, when: str) -> None:
    async def test() -> None:
        on_message = echo if when == "during the responses" else nothing
        # grpc.aio may report a half-close just before the cancel: it must not end the stream.
        async with rig.serving(on_message, on_half_closed=nothing) as service:
            neighbour = service.talk()
            await neighbour.write(b"a")
            untouched = await service.newly_opened.get()
            call = service.talk()
            if when != "before a message":
                await call.write(b"a")
            handler = await service.newly_opened.get()
            if when == "before the response":
                await handler.got_message.wait()
            if when == "during the responses":
                await call.read()
            call.cancel()
            await handler.was_reset.wait()
            handler.stream.send(b"ignored")
            handler.stream.finish()
            await service.talk("/test.Service/Other").code()  # a round trip
            assert (handler.resets, untouched.resets) == (1, 0)
            untouched.stream.send(b"b")
            untouched.stream.finish()
            messages, code = await all_of(neighbour)
            assert messages[-1] == b"b"
            assert code is grpc.StatusCode.OK

    rig.run(test)


def test_cancel_after_the_end_is_not_reported(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving(lambda handler, _: finish(handler)) as service:
            call = service.talk()
            await call.write(b"a")
            assert await call.code() is grpc.StatusCode.OK
            call.cancel()
            await service.talk("/test.Service/Other").code()  # a round trip
            assert [handler.resets for handler in service.handlers] == [0]

    rig.run(test)


def test_many_calls_cancelled_at_once_are_all_reset(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving(on_half_closed=nothing) as service:
            neighbour = service.talk()
            await neighbour.write(b"a")
            await neighbour.read()
            calls = [service.talk() for _ in range(99)]
            for call in calls:
                await call.write(b"a")
                await call.read()
            for call in calls:
                call.cancel()
            first, *others = service.handlers
            await asyncio.gather(*(handler.was_reset.wait() for handler in others))
            await neighbour.write(b"b")
            assert await neighbour.read() == b"b"
            assert [h.resets for h in service.handlers] == [0] + [1] * 99
            first.stream.finish()
            assert await neighbour.code() is grpc.StatusCode.OK

    rig.run(test)


def test_lost_connection_resets_every_open_stream(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving(on_half_closed=nothing) as service:
            calls = [service.talk() for _ in range(3)]
            for call in calls:
                await call.write(b"a")
                await call.read()
            await service.channel.close(None)
            await asyncio.gather(*(handler.was_reset.wait() for handler in service.handlers))
            assert [handler.resets for handler in service.handlers] == [1, 1, 1]

    rig.run(test)


# --- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("responses", [0, 1])
def test_deadline_ends_the_call_of_an_idle_handler(rig: Rig, responses: int) -> None:
    async def test() -> None:
        on_message = echo if responses else nothing
        async with rig.serving(on_message, on_half_closed=nothing) as service:
            call = service.talk(timeout=0.3)
            await call.write(b"a")
            messages, code = await all_of(call)
            assert (len(messages), code) == (responses, grpc.StatusCode.DEADLINE_EXCEEDED)
            handler = await service.newly_opened.get()
            await handler.was_reset.wait()
            handler.stream.send(b"ignored")
            handler.stream.finish()
            await service.talk("/test.Service/Other").code()  # a round trip
            assert handler.resets == 1

    rig.run(test)


def test_call_that_ends_before_its_deadline_is_unaffected(rig: Rig) -> None:
    async def test() -> None:
        async with rig.serving() as service:
            call = service.talk(timeout=600)
            await call.write(b"a")
            await call.done_writing()
            assert await all_of(call) == ([b"a"], grpc.StatusCode.OK)
            assert [handler.resets for handler in service.handlers] == [0]

    rig.run(test)


# --- handlers that fail ---------------------------------------------------------------------------


def fail(*_: object) -> None:
    raise ZeroDivisionError


def flood(handler: Handler, *_: object) -> None:
    for _n in range(40):
        handler.stream.send(b"x" * MIB)


def fail_if_asked(handler: Handler, data: bytes) -> None:
    if data == b"bad":
        fail()
    handler.stream.send(data)


@pytest.mark.parametrize("where", ["opened", "message", "half_closed", "writable"])
def test_failing_handler_ends_its_call_with_internal_and_one_log_line(rig: Rig, where: str) -> None:
    is_failing = True

    def now_and_then(handler: Handler, otherwise: Callable[[Handler], None]) -> None:
        if is_failing:
            fail()
        otherwise(handler)

    async def test() -> None:
        nonlocal is_failing
        async with rig.serving(
            on_open=lambda h: now_and_then(h, nothing) if where == "opened" else None,
            on_message=lambda h, d: flood(h, d) if d == b"flood" else fail_if_asked(h, d),
            on_half_closed=lambda h: (
                now_and_then(h, finish) if where == "half_closed" else finish(h)
            ),
            on_writable=lambda h: now_and_then(h, nothing) if where == "writable" else None,
        ) as service:
            with capture_logs() as lines:
                call = service.talk()
                if where == "message":
                    await call.write(b"bad")
                elif where == "writable":
                    await call.write(b"flood")
                elif where == "half_closed":
                    await call.done_writing()
                _, code = await all_of(call)
                assert code is grpc.StatusCode.INTERNAL
                assert "ZeroDivision" not in await call.details()
                await service.talk("/test.Service/Other").code()  # a round trip
            event = "stream could not be opened" if where == "opened" else "stream handler failed"
            assert [(line["event"], line["log_level"]) for line in lines] == [(event, "error")]
            assert [h.resets for h in service.handlers] == [0 if where == "opened" else 1]
            is_failing = False
            call = service.talk()
            await call.write(b"good")
            await call.done_writing()
            assert await all_of(call) == ([b"good"], grpc.StatusCode.OK)

    rig.run(test)


def test_every_status_code_reaches_the_client(rig: Rig) -> None:
    def end(handler: Handler, data: bytes) -> None:
        handler.stream.finish(int(data), "na\xefve: 100%\n")

    async def test() -> None:
        async with rig.serving(end) as service:
            for code in range(1, 17):
                call = service.talk()
                await call.write(b"%d" % code)
                assert (await call.code()).value[0] == code
                assert await call.details() == "na\xefve: 100%\n"

    rig.run(test)
