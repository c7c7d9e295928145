"""gRPC on one HTTP/2 connection: events in, calls of the handlers out.

What is read at once is handled in one go and answered with one write: while bytes are being
received, what the handlers send only piles up in the connection. If that takes longer than
:data:`TURN_SECONDS`, the rest is left for :meth:`GrpcSession.go_on`. No task, no future, no await.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final

import structlog

from epp.transport.grpc.counters import GrpcCounters
from epp.transport.grpc.framing import MessageReader
from epp.transport.grpc.receive_throttle import ReceiveThrottle
from epp.transport.grpc.requests import Call, read_call
from epp.transport.grpc.stream import GrpcStream, Timer
from epp.transport.http2 import (
    Connection,
    DataReceived,
    Event,
    RequestReceived,
    StreamReset,
)
from epp.transport.http2 import Stream as HttpStream
from epp.transport.interface import HANDLER_FAULT, OpenStream, StatusCode, StreamHandler

TURN_SECONDS: Final = 0.005
"""How long a connection may go on before others have their turn."""
_MOST_BLOCKS: Final = 128
"""Header blocks that are decoded before anything else is done: up to 40 us each."""
_FEW_EVENTS: Final = 2
"""Handled at once: a request in a read of its own needs no clock."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """What the messages of a connection may cost."""

    max_message_bytes: int = 65 << 20
    """One message: 1 MiB more than the longest body taken, so that a longer one meets an answer of
    HTTP's before its message meets this."""
    max_sent_message_bytes: int = 65 << 20
    """One message of ours; its stream ends instead."""
    max_stream_seconds: float = inf
    """One stream, from its beginning; then it ends with DEADLINE_EXCEEDED. Off by default: in lean
    mode a stream is silent for a whole generation."""


class GrpcSession:
    """The calls of one connection."""

    def __init__(
        self,
        connection: Connection,
        methods: Mapping[str, OpenStream],
        *,
        write: Callable[[bytes], None],
        call_later: Callable[[float, Callable[[], None]], Timer],
        limits: GrpcLimits,
        counters: GrpcCounters,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Serve ``methods`` on ``connection``.

        Args:
            connection: Its HTTP/2.
            methods: By path.
            write: Takes what is to be written.
            call_later: Calls after some seconds, for deadlines.
            limits: What messages may cost.
            counters: Where it is counted.
            clock: Monotonic seconds, for how long a turn lasts.
        """
        self.connection = connection
        self._methods = methods
        self._write = write
        self._call_later = call_later
        self._max_message_bytes = limits.max_message_bytes
        self.max_sent_message_bytes = limits.max_sent_message_bytes
        self._max_stream_seconds = limits.max_stream_seconds
        self._counters = counters
        self._throttle = ReceiveThrottle(connection)
        self._clock = clock
        self._unhandled: deque[Event] = deque()
        self.is_busy = False
        """Bytes are being received; what is sent meanwhile goes out at the end."""

    # --- what the driver tells ------------------------------------------------------------------

    def receive(self, data: bytes, *, later: bool = False) -> None:
        """Take bytes that were read, and handle them for as long as a turn lasts.

        Args:
            data: The bytes.
            later: Leave all of it for :meth:`go_on`.
        """
        events = self.connection.receive(data, _MOST_BLOCKS)
        if self._unhandled or later:
            self._unhandled.extend(events)
            self.flush()
        elif len(events) > _FEW_EVENTS:
            self._unhandled.extend(events)
            self.go_on()
        else:
            self.is_busy = True
            try:
                for event in events:
                    self._handle(event)
            finally:
                self.is_busy = False
            self.flush()

    @property
    def is_behind(self) -> bool:
        """Bytes were received that are not handled yet."""
        return bool(self._unhandled) or self.connection.has_unread

    def go_on(self) -> None:
        """Handle what was received before, for as long as a turn lasts."""
        unhandled, clock = self._unhandled, self._clock
        until = clock() + TURN_SECONDS
        self.is_busy = True
        try:
            while True:
                if unhandled:
                    self._handle(unhandled.popleft())
                elif self.connection.has_unread:
                    unhandled.extend(self.connection.receive(b"", _MOST_BLOCKS))
                else:
                    break
                if clock() >= until:
                    break
        finally:
            self.is_busy = False
        self.flush()

    def _handle(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._data(event)
        elif isinstance(event, RequestReceived):
            self._opened(event)
        elif isinstance(event, StreamReset):
            self._reset(event.stream)
        else:
            log.warning("connection ended", code=event.code.name, reason=event.reason)

    def flush(self) -> None:
        """Write what there is and what has room, unless bytes are just being received."""
        if self.is_busy:
            return
        connection = self.connection
        while data := connection.take_output():
            self._write(data)
            if not connection.has_more:
                return
            self.is_busy = True
            for http in connection.take_writable():
                self._writable(http.owner)
            self.is_busy = False

    def lost(self) -> None:
        """The connection is gone: tell the handlers of all open streams."""
        self._write = _to_nobody
        unhandled, self._unhandled = self._unhandled, deque()
        for event in unhandled:
            if isinstance(event, StreamReset):  # the connection has forgotten its stream
                self._reset(event.stream)
        for http in list(self.connection.streams.values()):
            self._reset(http)

    # --- calls ----------------------------------------------------------------------------------

    def _opened(self, event: RequestReceived) -> None:
        http, headers = event.stream, event.headers
        call: Call | None = headers.memo
        if call is None:
            call = headers.memo = read_call(headers, self._methods)
        if call.opened is None:
            self._counters.calls_refused += 1
            self.connection.end(http, call.refusal)
            return
        reader = MessageReader(self._max_message_bytes, self.connection.budget)
        stream = http.owner = GrpcStream(self.connection, http, self, reader)
        try:
            handler = call.opened(stream, call.metadata)
        except Exception:
            log.exception("stream could not be opened")
            self._counters.handler_failures += 1
            stream.finish(StatusCode.INTERNAL, HANDLER_FAULT)
            return
        if stream.is_finished:
            if stream.has_overflowed:  # before there was a handler to tell
                self._tell_gone(handler)
            return
        stream.handler = handler
        seconds = min(call.timeout_seconds, self._max_stream_seconds)
        if seconds < inf:
            stream.deadline = self._call_later(seconds, lambda: self._deadline_passed(stream))
        if event.end_stream:
            self._half_closed(stream)

    def _data(self, event: DataReceived) -> None:
        stream: GrpcStream | None = event.stream.owner
        if stream is None:
            return
        reader = stream.reader
        if event.data:
            handler = stream.handler
            messages = reader.feed(event.data)
            if not reader.kept_bytes and self._throttle.is_active:
                self._throttle.release(event.stream)
            try:
                for message in messages:
                    handler.message(message)
                    if stream.is_finished:
                        return
            except Exception as error:
                self._failed(stream, error)
                return
            if reader.kept_bytes:
                # After the handler, who may have stopped the stream.
                self._throttle.message_is_partial(event.stream)
            if reader.error is not None:
                self._counters.messages_refused += 1
                self._break_off(stream, reader.error.code, str(reader.error))
                return
        if event.end_stream:
            self._half_closed(stream)

    def _half_closed(self, stream: GrpcStream) -> None:
        if stream.is_finished:
            return
        if not stream.reader.is_between_messages:
            self._counters.messages_refused += 1
            self._break_off(stream, StatusCode.INTERNAL, "the last message is cut short")
            return
        try:
            stream.handler.half_closed()
        except Exception as error:
            self._failed(stream, error)

    def _writable(self, stream: GrpcStream | None) -> None:
        if stream is not None:
            try:
                stream.handler.writable()
            except Exception as error:
                self._failed(stream, error)

    def _reset(self, http: HttpStream) -> None:
        stream: GrpcStream | None = http.owner
        if stream is not None:
            handler = stream.handler
            stream.close()
            self._tell_gone(handler)

    # --- ends that are not the handler's --------------------------------------------------------

    def overflowed(self, stream: GrpcStream) -> None:
        self._counters.calls_overflowed += 1
        self._give_up(stream, "the answers to this stream are not read")

    def dropped(self, stream: HttpStream) -> None:
        self._throttle.release(stream)

    def too_long(self, stream: GrpcStream, message_bytes: int) -> None:
        self._counters.answers_refused += 1
        most = self.max_sent_message_bytes
        self._give_up(stream, f"an answer of {message_bytes} bytes, above the limit of {most}")

    def _give_up(self, stream: GrpcStream, reason: str) -> None:
        """End a stream whose handler is just sending; it is told after it has returned."""
        handler = stream.handler
        stream.has_overflowed = True
        self.connection.drop_waiting(stream.http)
        stream.finish(StatusCode.RESOURCE_EXHAUSTED, reason)
        self._call_later(0.0, lambda: self._tell_gone(handler))

    def _deadline_passed(self, stream: GrpcStream) -> None:
        if not stream.is_finished:
            self._counters.deadlines_exceeded += 1
            self._break_off(stream, StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")

    def _failed(self, stream: GrpcStream, error: Exception) -> None:
        """Take the exception that a handler let out: its stream ends, the connection does not."""
        log.error("stream handler failed", exc_info=error)
        self._counters.handler_failures += 1
        if not stream.is_finished:
            self._break_off(stream, StatusCode.INTERNAL, HANDLER_FAULT)

    def _break_off(self, stream: GrpcStream, code: StatusCode, reason: str) -> None:
        handler = stream.handler
        self.connection.drop_waiting(stream.http)
        stream.finish(code, reason)
        self._tell_gone(handler)

    def _tell_gone(self, handler: StreamHandler) -> None:
        try:
            handler.reset()
        except Exception:
            log.exception("stream handler failed")
            self._counters.handler_failures += 1


def _to_nobody(_: bytes) -> None:
    """Take what a lost connection still has to say."""
