"""Reports the beginning and end of each stream to an observer, on any transport."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from epp.transport.interface import OpenStream, StatusCode, Stream, StreamHandler

_CODE_NAMES: Final = {
    StatusCode.OK: "OK",
    StatusCode.CANCELLED: "Canceled",
    StatusCode.UNKNOWN: "Unknown",
    StatusCode.INVALID_ARGUMENT: "InvalidArgument",
    StatusCode.DEADLINE_EXCEEDED: "DeadlineExceeded",
    StatusCode.NOT_FOUND: "NotFound",
    StatusCode.RESOURCE_EXHAUSTED: "ResourceExhausted",
    StatusCode.FAILED_PRECONDITION: "FailedPrecondition",
    StatusCode.UNIMPLEMENTED: "Unimplemented",
    StatusCode.INTERNAL: "Internal",
    StatusCode.UNAVAILABLE: "Unavailable",
}
"""Names of the codes in grpc-go."""


class StreamObserver(Protocol):
    """Counts or times streams."""

    def opened(self) -> None:
        """Count a new stream."""

    def ended(self, code: str, seconds: float) -> None:
        """Count a stream that has ended with the gRPC status ``code`` after ``seconds``."""


def observed(
    opened: OpenStream, observer: StreamObserver, clock: Callable[[], float]
) -> OpenStream:
    """Wrap ``opened`` so that ``observer`` is called for every stream; ``clock`` is in seconds."""

    def open_observed(stream: Stream, headers: Mapping[str, str]) -> StreamHandler:
        wrapper = _ObservedStream(stream, observer, clock)
        try:
            wrapper.handler = opened(wrapper, headers)
        except Exception:
            wrapper.ended(StatusCode.INTERNAL)  # the status that the transport sends
            raise
        return wrapper

    return open_observed


class _ObservedStream:
    """The handler for the transport's stream, and the stream for the wrapped handler."""

    __slots__ = ("_began_at", "_clock", "_has_ended", "_observer", "_stream", "handler")

    handler: StreamHandler

    def __init__(
        self, stream: Stream, observer: StreamObserver, clock: Callable[[], float]
    ) -> None:
        self._stream = stream
        self._observer = observer
        self._clock = clock
        self._has_ended = False
        self._began_at = clock()
        observer.opened()

    # the stream

    @property
    def is_writable(self) -> bool:
        return self._stream.is_writable

    def send(self, message: bytes) -> None:
        self._stream.send(message)

    def finish(self, code: int = StatusCode.OK, message: str = "") -> None:
        self.ended(code)
        self._stream.finish(code, message)

    def pause_reading(self) -> None:
        self._stream.pause_reading()

    def resume_reading(self) -> None:
        self._stream.resume_reading()

    # the handler

    def message(self, data: bytes) -> None:
        try:
            self.handler.message(data)
        except Exception:
            self.ended(StatusCode.INTERNAL)
            raise

    def half_closed(self) -> None:
        try:
            self.handler.half_closed()
        except Exception:
            self.ended(StatusCode.INTERNAL)
            raise

    def reset(self) -> None:
        self.ended(StatusCode.CANCELLED)
        self.handler.reset()

    def writable(self) -> None:
        self.handler.writable()

    def ended(self, code: int) -> None:
        """Report the end to the observer; only the first call counts."""
        if not self._has_ended:
            self._has_ended = True
            name = _CODE_NAMES.get(StatusCode(code), "Unknown")
            self._observer.ended(name, self._clock() - self._began_at)
