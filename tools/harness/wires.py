"""The connection between a client and the service: direct calls, or a transport and a socket.

A test runs unchanged on each wire: every step of a client waits until the service has processed it,
and reading the replies waits until everything that the service sent has arrived.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from epp.ext_proc import ExtProcService, ExtProcStream
from epp.transport import Stream

T = TypeVar("T")


class Recorder:
    """The transport stream of a handler: records all calls and forwards them."""

    def __init__(self, stream: Stream | None = None) -> None:
        self._stream = stream
        self.sent: list[bytes] = []
        self.sent_after_finish = 0
        self.is_paused = False
        self.finished: list[tuple[int, str]] = []

    @property
    def is_writable(self) -> bool:
        return self._stream is None or self._stream.is_writable

    def send(self, message: bytes) -> None:
        if self.finished:
            self.sent_after_finish += 1
        self.sent.append(message)
        if self._stream is not None:
            self._stream.send(message)

    def pause_reading(self) -> None:
        self.is_paused = True
        if self._stream is not None:
            self._stream.pause_reading()

    def resume_reading(self) -> None:
        self.is_paused = False
        if self._stream is not None:
            self._stream.resume_reading()

    def finish(self, code: int = 0, message: str = "") -> None:
        self.finished.append((code, message))
        if self._stream is not None:
            self._stream.finish(code, message)


class Narrow(Recorder):
    """A transport stream with room for ``room`` replies."""

    room = 3

    @property
    def is_writable(self) -> bool:
        return len(self.sent) < self.room


class Line(ABC):
    """The client's end of one stream."""

    recorder: Recorder
    stream: ExtProcStream
    """The service's end."""

    @property
    @abstractmethod
    def received(self) -> list[bytes]:
        """All replies so far."""

    @property
    @abstractmethod
    def finished(self) -> list[tuple[int, str]]:
        """The status with which the service ended the stream, if it did."""

    @abstractmethod
    def message(self, data: bytes) -> None:
        """Send one message."""

    @abstractmethod
    def half_close(self) -> None:
        """Half-close the stream."""

    @abstractmethod
    def reset(self) -> None:
        """Reset the stream."""


class Wire(ABC):
    """Opens lines to services."""

    @abstractmethod
    def open(self, service: ExtProcService) -> Line:
        """Open a stream to ``service``."""

    @abstractmethod
    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` on the loop of the services and return its result."""

    def call(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the loop of the services."""

        async def calling() -> T:
            return function()

        return self.run(calling())

    @abstractmethod
    def hang_up(self) -> None:
        """Reset all streams."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""


class DirectLine(Line):
    """A line without a transport: the client calls the handler directly."""

    def __init__(self, service: ExtProcService) -> None:
        self.recorder = Recorder()
        self.stream = service.opened(self.recorder, {})

    @property
    def received(self) -> list[bytes]:
        return self.recorder.sent

    @property
    def finished(self) -> list[tuple[int, str]]:
        return self.recorder.finished

    def message(self, data: bytes) -> None:
        self.stream.message(data)

    def half_close(self) -> None:
        self.stream.half_closed()

    def reset(self) -> None:
        self.stream.reset()


class DirectWire(Wire):
    """Opens direct lines; its event loop runs in the caller's thread during ``run``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def open(self, service: ExtProcService) -> DirectLine:
        return DirectLine(service)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def hang_up(self) -> None:
        """Do nothing: direct lines hold no resources."""

    def close(self) -> None:
        self._loop.close()
