"""A wire with a transport and a socket, with grpcio's client (C core) at the other end.

One server for all tests runs on an event loop in its own thread; the metadata of each call
identifies its line.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

import grpc
import uvloop

from epp.ext_proc import METHOD, ExtProcService, ExtProcStream
from epp.transport import Http2Server, Server, Stream
from epp.transport.grpcio import GrpcioServer
from tools.harness.wires import Line, Recorder, Wire

T = TypeVar("T")
Transport = Literal["http2", "grpcio"]

_PATIENCE_SECONDS = 40.0
"""Far above the milliseconds that a step takes."""

_LINE_ID = "x-line-id"
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class _Handler:
    """Forwards the transport's calls to a stream and signals when they have returned."""

    def __init__(self, stream: ExtProcStream) -> None:
        self._stream = stream
        self.changed = threading.Condition()
        self.messages = 0
        self.is_half_closed = False
        self.is_reset = False

    def message(self, data: bytes) -> None:
        self._stream.message(data)
        with self.changed:
            self.messages += 1
            self.changed.notify_all()

    def half_closed(self) -> None:
        self._stream.half_closed()
        with self.changed:
            self.is_half_closed = True
            self.changed.notify_all()

    def reset(self) -> None:
        self._stream.reset()
        with self.changed:
            self.is_reset = True
            self.changed.notify_all()

    def writable(self) -> None:
        self._stream.writable()


class SocketLine(Line):
    """A call of grpcio's client; a thread reads the replies."""

    _handler: _Handler

    def __init__(self, service: ExtProcService) -> None:
        self._service = service
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._messages = 0
        self._received: list[bytes] = []
        self._status: tuple[int, str] | None = None
        self._is_reset = False
        self._opened = threading.Event()
        self._arrived = threading.Condition()

    def call(self, method: grpc.StreamStreamMultiCallable, line_id: str) -> None:
        """Open the stream."""
        self._call = method(iter(self._outgoing.get, None), metadata=((_LINE_ID, line_id),))
        threading.Thread(target=self._read, name=f"client-{line_id}", daemon=True).start()
        assert self._opened.wait(_PATIENCE_SECONDS)

    def accept(self, stream: Stream, headers: Mapping[str, str]) -> _Handler:
        """Connect the stream that arrived at the server."""
        self.recorder = Recorder(stream)
        self.stream = self._service.opened(self.recorder, headers)
        self._handler = _Handler(self.stream)
        self._opened.set()
        return self._handler

    @property
    def received(self) -> list[bytes]:
        self._settle()
        return self._received

    @property
    def finished(self) -> list[tuple[int, str]]:
        self._settle()
        return [] if self._status is None or self._is_reset else [self._status]

    def message(self, data: bytes) -> None:
        if self._has_ended:
            return  # the stream accepts no message
        self._outgoing.put(data)
        self._messages += 1
        self._wait(self._handler.changed, lambda: self._handler.messages == self._messages)

    def half_close(self) -> None:
        if not self._has_ended:
            self._outgoing.put(None)
            self._wait(self._handler.changed, lambda: self._handler.is_half_closed)

    def reset(self) -> None:
        if not self._has_ended:
            self._is_reset = True
            self._call.cancel()
            # grpc.aio may report a half-close just before the cancel; the stream ends by either.
            self._wait(
                self._handler.changed,
                lambda: self._handler.is_reset or self._handler.is_half_closed,
            )

    @property
    def _has_ended(self) -> bool:
        self._settle()
        return self._status is not None or self._is_reset

    def _settle(self) -> None:
        """Wait until the client has all that the service has sent."""
        recorder = self.recorder
        self._wait(
            self._arrived,
            lambda: (
                self._is_reset
                or (
                    len(self._received) == len(recorder.sent) - recorder.sent_after_finish
                    and (self._status is not None) is bool(recorder.finished)
                )
            ),
        )

    def _wait(self, condition: threading.Condition, holds: Callable[[], bool]) -> None:
        with condition:
            assert condition.wait_for(holds, _PATIENCE_SECONDS), "it never arrived"

    def _read(self) -> None:
        try:
            for reply in self._call:
                with self._arrived:
                    self._received.append(reply)
                    self._arrived.notify_all()
        except grpc.RpcError:
            pass  # the status has the same information
        with self._arrived:
            self._status = (self._call.code().value[0], self._call.details() or "")
            self._arrived.notify_all()
        self._outgoing.put(None)  # ends the thread that sends


class SocketWire(Wire):
    """One server of a transport, and one channel of grpcio's client."""

    def __init__(self, transport: Transport) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{transport}-server")
        self._thread.start()
        self._line_ids = itertools.count()
        self._lines: dict[str, SocketLine] = {}
        self.server: Server = self.call(lambda: self._make_server(transport))
        port = self.run(self.server.start())
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_UNLIMITED)
        self._method = self._channel.stream_stream(METHOD)

    def _make_server(self, transport: Transport) -> Server:
        made = Http2Server if transport == "http2" else GrpcioServer
        return made({METHOD: self._opened}, host="127.0.0.1")

    def _opened(self, stream: Stream, headers: Mapping[str, str]) -> _Handler:
        return self._lines[headers[_LINE_ID]].accept(stream, headers)

    def open(self, service: ExtProcService) -> SocketLine:
        line_id = str(next(self._line_ids))
        line = self._lines[line_id] = SocketLine(service)
        line.call(self._method, line_id)
        return line

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE_SECONDS)

    def hang_up(self) -> None:
        for line in self._lines.values():
            line.reset()
        self._lines.clear()

    def close(self) -> None:
        self.hang_up()
        self._channel.close()
        self.run(self.server.stop(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
