"""gRPC on one HTTP/2 connection: translates its events to calls of handlers.

The events of one read are handled together, and what the handlers send meanwhile is written at
once. If that takes longer than
:data:`~epp.transport.read_scheduling.TURN_SECONDS`, the rest is left for
:meth:`GrpcSession.handle_more`. There is no task, no future and no await.
"""

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic
from typing import Final

import structlog

from epp.transport.grpc.framing import HEAD_BYTES, PREFIX_BYTES, MessageReader, unpack_head
from epp.transport.grpc.receive_throttle import ReceiveThrottle
from epp.transport.grpc.requests import Call, read_call
from epp.transport.grpc.stream import GrpcStream, StreamOwner, Timer
from epp.transport.http2 import (
    FRAME_HEADER_BYTES,
    DataReceived,
    Event,
    Http2Connection,
    Http2Stream,
    RequestReceived,
    StreamReset,
)
from epp.transport.interface import HANDLER_FAULT, OpenStream, StatusCode, StreamHandler
from epp.transport.read_scheduling import TURN_SECONDS
from epp.transport.settings import GrpcLimits
from epp.transport.statistics import GrpcCounters

_MAX_HEADER_BLOCKS: Final = 128
"""Header blocks to decode before handling their events: up to 40 us each."""
_UNTIMED_EVENTS: Final = 2
"""Number of events handled without reading the clock, such as a single request."""

log: Final = structlog.get_logger(__name__)


class GrpcSession(StreamOwner):
    """The calls of one connection."""

    def __init__(
        self,
        connection: Http2Connection,
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
            connection: The HTTP/2 connection.
            methods: Handlers by method path.
            write: Called with bytes to write.
            call_later: Calls a function after some seconds; for deadlines.
            limits: Limits of messages and streams.
            counters: Counts for metrics.
            clock: Monotonic seconds, to limit the time of a turn.
        """
        self.connection = connection
        self._sender = connection.sender
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
        """Events are being handled: output is flushed afterwards."""

    # --- bytes in, bytes out --------------------------------------------------------------------

    def receive(self, data: bytes, *, later: bool = False) -> None:
        """Handle bytes that were read, for one turn at most.

        Args:
            data: The bytes.
            later: Leave all events for :meth:`handle_more`.
        """
        events = self.connection.receive(data, _MAX_HEADER_BLOCKS)
        if self._unhandled or later:
            self._unhandled.extend(events)
            self.flush()
        elif len(events) > _UNTIMED_EVENTS:
            self._unhandled.extend(events)
            self.handle_more()
        else:
            self.is_busy = True
            try:
                for event in events:
                    self._handle(event)
            finally:
                self.is_busy = False
            self.flush()

    def receive_message(self, data: bytes) -> bool:
        """Handle a read that is one message in one plain DATA frame, as most reads are.

        It bypasses three of four layers, which saves 2 us of the 9 that a chunk of a response
        takes.

        Returns:
            False, with nothing done, for any other read, which :meth:`receive` handles, and while
            events are left for :meth:`handle_more`.
        """
        size = len(data)
        if size < HEAD_BYTES or self._unhandled:
            return False
        word: int  # plain integers, when compiled
        flags: int
        stream_id: int
        length: int
        word, flags, stream_id, is_compressed, length = unpack_head(data)
        # The frame's type, DATA, is 0.
        if size != length + HEAD_BYTES or word != (length + PREFIX_BYTES) << 8 or flags:
            return False
        http = self.connection.receive_plain_data(stream_id, length + PREFIX_BYTES)
        if http is None:
            return False
        stream: GrpcStream | None = http.owner
        self.is_busy = True
        try:
            if stream is not None:
                if is_compressed or not stream.reader.takes_whole(length):
                    self._data(DataReceived(http, data[FRAME_HEADER_BYTES:], end_stream=False))
                else:
                    self._message(stream, data[HEAD_BYTES:])
        finally:
            self.is_busy = False
        self.flush()
        return True

    def _message(self, stream: GrpcStream, message: bytes) -> None:
        if self._throttle.is_active:
            self._throttle.release(stream.http)
        try:
            stream.handler.message(message)
        except Exception as error:
            self._failed(stream, error)

    @property
    def is_behind(self) -> bool:
        """Whether received bytes have not been handled yet."""
        return bool(self._unhandled) or self.connection.has_unread

    def handle_more(self) -> None:
        """Continue to handle bytes received before, for one turn at most."""
        unhandled, clock = self._unhandled, self._clock
        end = clock() + TURN_SECONDS
        self.is_busy = True
        try:
            while True:
                if unhandled:
                    self._handle(unhandled.popleft())
                elif self.connection.has_unread:
                    unhandled.extend(self.connection.receive(b"", _MAX_HEADER_BLOCKS))
                else:
                    break
                if clock() >= end:
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
        """Write the output that windows and socket allow, unless ``is_busy``."""
        if self.is_busy:
            return
        connection, sender = self.connection, self._sender
        if not sender.ready and not sender.writable:  # nothing waits: saves two calls
            if sender.output:
                self._write(sender.take())
            return
        while data := connection.take_output():
            self._write(data)
            if not connection.has_more:
                return
            self.is_busy = True
            for http in connection.take_writable():
                self._writable(http.owner)
            self.is_busy = False

    def lost(self) -> None:
        """Reset the handlers of all open streams, because the connection is lost."""
        self._write = _discard
        unhandled, self._unhandled = self._unhandled, deque()
        for event in unhandled:
            if isinstance(event, StreamReset):  # its stream is not among the open streams
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
            if stream.has_overflowed:  # before there was a handler to reset
                self._notify_reset(handler)
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
            if not reader.buffered_bytes and self._throttle.is_active:
                self._throttle.release(event.stream)
            try:
                for message in messages:
                    handler.message(message)
                    if stream.is_finished:
                        return
            except Exception as error:
                self._failed(stream, error)
                return
            if reader.buffered_bytes:
                # After the handler, which may have paused the stream.
                self._throttle.message_is_partial(event.stream)
            if reader.error is not None:
                self._counters.messages_refused += 1
                self._abort(stream, reader.error.code, str(reader.error))
                return
        if event.end_stream:
            self._half_closed(stream)

    def _half_closed(self, stream: GrpcStream) -> None:
        if stream.is_finished:
            return
        if not stream.reader.is_between_messages:
            self._counters.messages_refused += 1
            self._abort(stream, StatusCode.INTERNAL, "the last message is incomplete")
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

    def _reset(self, http: Http2Stream) -> None:
        stream: GrpcStream | None = http.owner
        if stream is not None:
            handler = stream.handler
            stream.close()
            self._notify_reset(handler)

    # --- streams not ended by their handlers ----------------------------------------------------

    def overflowed(self, stream: GrpcStream) -> None:
        self._counters.calls_overflowed += 1
        self._give_up(stream, "the client does not read the responses on this stream")

    def partial_message_dropped(self, stream: Http2Stream) -> None:
        self._throttle.release(stream)

    def too_long(self, stream: GrpcStream, message_bytes: int) -> None:
        self._counters.responses_refused += 1
        limit = self.max_sent_message_bytes
        self._give_up(stream, f"a response of {message_bytes} bytes exceeds the limit of {limit}")

    def _give_up(self, stream: GrpcStream, reason: str) -> None:
        """End a stream whose handler is sending; the handler is reset after it has returned."""
        handler = stream.handler
        stream.has_overflowed = True
        self.connection.drop_waiting(stream.http)
        stream.finish(StatusCode.RESOURCE_EXHAUSTED, reason)
        self._call_later(0.0, lambda: self._notify_reset(handler))

    def _deadline_passed(self, stream: GrpcStream) -> None:
        if not stream.is_finished:
            self._counters.deadlines_exceeded += 1
            self._abort(stream, StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")

    def _failed(self, stream: GrpcStream, error: Exception) -> None:
        """End the stream of a handler that has raised an exception."""
        log.error("stream handler failed", exc_info=error)
        self._counters.handler_failures += 1
        if not stream.is_finished:
            self._abort(stream, StatusCode.INTERNAL, HANDLER_FAULT)

    def _abort(self, stream: GrpcStream, code: StatusCode, reason: str) -> None:
        handler = stream.handler
        self.connection.drop_waiting(stream.http)
        stream.finish(code, reason)
        self._notify_reset(handler)

    def _notify_reset(self, handler: StreamHandler) -> None:
        try:
            handler.reset()
        except Exception:
            log.exception("stream handler failed")
            self._counters.handler_failures += 1


def _discard(_: bytes) -> None:
    """Discard the output of a lost connection."""
