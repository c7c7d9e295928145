"""Opening of streams: handlers that act while they are created, and time limits."""

import gc
import weakref
from collections.abc import Mapping

from epp.transport import StatusCode, Stream
from tools.harness.in_memory import make
from tools.harness.raw_client import Idle, call, fields, headers


class Finishing(Idle):
    """Ends its stream at once."""

    def __init__(self, stream: Stream, metadata: Mapping[str, str]) -> None:
        super().__init__(stream, metadata)
        stream.finish(StatusCode.UNAVAILABLE, "not now")


class Flooding(Idle):
    """Sends more than the waiting limit."""

    def __init__(self, stream: Stream, metadata: Mapping[str, str]) -> None:
        super().__init__(stream, metadata)
        for _ in range(60):
            stream.send(bytes(40_000))


def test_stream_finished_while_opening_is_not_notified() -> None:
    client, handlers = make(Finishing)
    client.send(call(1, b"hello"))
    assert client.streams[1].status == 14
    assert (handlers[0].messages, handlers[0].half_closes, handlers[0].resets) == ([], 0, 0)


def test_handler_that_finishes_while_opening_is_freed_at_once() -> None:
    client, handlers = make(Finishing)
    gc.disable()
    try:
        client.send(call(1, b"hello"))
        stream = weakref.ref(handlers.pop())
        assert stream() is None
    finally:
        gc.enable()


def test_stream_that_overflows_while_opening_is_reset_once() -> None:
    client, handlers = make(Flooding, limits={"max_waiting_stream_bytes": 100_000})
    client.send(headers(1))
    client.timers.run()
    assert client.streams[1].status == 8
    assert handlers[0].resets == 1


def test_streams_have_no_time_limit_by_default() -> None:
    client, _ = make(Idle)
    client.send(headers(1))
    assert client.timers.timers == []


def test_streams_may_have_a_time_limit() -> None:
    client, handlers = make(Idle, messages={"max_stream_seconds": 60.0})
    client.send(
        headers(1), headers(3, fields(grpc_timeout="5S")), headers(5, fields(grpc_timeout="2M"))
    )
    assert [timer.seconds for timer in client.timers.timers] == [60.0, 5.0, 60.0]
    client.timers.run()
    client.read()
    assert [client.streams[stream_id].status for stream_id in (1, 3, 5)] == [4, 4, 4]
    assert [handler.resets for handler in handlers] == [1, 1, 1]
