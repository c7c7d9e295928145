"""What a handler does while it is being made: answer, finish, or send more than may wait."""

import gc
import weakref
from collections.abc import Mapping

from epp.transport import StatusCode, Stream, TransportSettings
from epp.transport.http2 import ConnectionLimits
from transport.in_memory import InMemory, connect
from transport.raw_client import METHOD, Echo, Idle, call, headers


class Finishing(Idle):
    """Ends its stream at once."""

    def __init__(self, stream: Stream, metadata: Mapping[str, str]) -> None:
        super().__init__(stream, metadata)
        stream.finish(StatusCode.UNAVAILABLE, "not now")


class Flooding(Idle):
    """Sends more than may wait."""

    def __init__(self, stream: Stream, metadata: Mapping[str, str]) -> None:
        super().__init__(stream, metadata)
        for _ in range(60):
            stream.send(bytes(40_000))


def make(handler: type[Echo]) -> tuple[InMemory, list[Echo]]:
    handlers: list[Echo] = []

    def opened(stream: Stream, metadata: Mapping[str, str]) -> Echo:
        handlers.append(handler(stream, metadata))
        return handlers[-1]

    settings = TransportSettings(connection=ConnectionLimits(max_waiting_stream_bytes=100_000))
    return connect({METHOD: opened}, settings=settings), handlers


def test_stream_finished_while_it_is_opened_is_told_nothing_more() -> None:
    client, handlers = make(Finishing)
    client.send(call(1, b"hello"))
    assert client.streams[1].status == 14
    assert (handlers[0].messages, handlers[0].half_closes, handlers[0].resets) == ([], 0, 0)


def test_handler_that_finished_while_it_was_opened_is_freed_at_once() -> None:
    client, handlers = make(Finishing)
    gc.disable()
    try:
        client.send(call(1, b"hello"))
        stream = weakref.ref(handlers.pop())
        assert stream() is None
    finally:
        gc.enable()


def test_stream_that_overflows_while_it_is_opened_is_told_once() -> None:
    client, handlers = make(Flooding)
    client.send(headers(1))
    client.timers.run()
    assert client.streams[1].status == 8
    assert handlers[0].resets == 1
