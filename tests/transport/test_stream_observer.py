"""Streams are counted and timed however they end."""

from collections.abc import Callable, Mapping

import pytest

from epp.observability import Metrics, StreamMetrics
from epp.transport import StatusCode, Stream, StreamHandler, observed


class Sent:
    """A transport's stream."""

    is_writable = True

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def finish(self, code: int = StatusCode.OK, message: str = "") -> None:
        self.sent.append((code, message))

    def pause_reading(self) -> None:
        self.sent.append("pause")

    def resume_reading(self) -> None:
        self.sent.append("resume")


class Handler:
    """Does what each message says."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.calls: list[str] = []

    def message(self, data: bytes) -> None:
        if data == b"fail":
            raise RuntimeError("bug")
        if data.isdigit():
            self.stream.finish(int(data), "why")
        else:
            self.stream.send(data)

    def half_closed(self) -> None:
        self.stream.finish()

    def reset(self) -> None:
        self.calls.append("reset")

    def writable(self) -> None:
        self.calls.append("writable")


class Watched:
    """An observed stream, and the observer's records."""

    def __init__(self) -> None:
        self.registry = Metrics().registry
        self.now = 0.0
        self.transport = Sent()
        self.handlers: list[Handler] = []
        observer = StreamMetrics(self.registry)
        self.opened = observed(self._open, observer, lambda: self.now)
        self.stream = self.opened(self.transport, {})

    def _open(self, stream: Stream, headers: Mapping[str, str]) -> StreamHandler:
        if headers:
            raise RuntimeError("bug")
        self.handlers.append(Handler(stream))
        return self.handlers[-1]

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"llm_d_epp_extproc_{name}", labels) or 0.0


def fail(stream: StreamHandler) -> None:
    with pytest.raises(RuntimeError):
        stream.message(b"fail")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(lambda stream: stream.half_closed(), "OK", id="half-closed"),
        pytest.param(lambda stream: stream.reset(), "Canceled", id="reset"),
        pytest.param(lambda stream: stream.message(b"13"), "Internal", id="a status"),
        pytest.param(lambda stream: stream.message(b"8"), "ResourceExhausted", id="another"),
        pytest.param(fail, "Internal", id="a bug"),
    ],
)
def test_an_end_is_counted_once(end: Callable[[StreamHandler], None], code: str) -> None:
    made = Watched()
    assert made.value("streams_inflight") == 1
    made.now = 3.0
    end(made.stream)
    made.stream.reset()
    assert made.value("streams_inflight") == 0
    assert made.value("streams_total", code=code) == 1
    assert made.value("stream_duration_seconds_sum") == 3
    assert made.value("stream_duration_seconds_count") == 1


def test_all_calls_are_forwarded() -> None:
    made = Watched()
    (handler,) = made.handlers
    made.stream.message(b"hello")
    made.stream.writable()
    handler.stream.pause_reading()
    handler.stream.resume_reading()
    assert handler.stream.is_writable
    made.stream.message(b"8")
    assert made.transport.sent == [b"hello", "pause", "resume", (8, "why")]
    made.stream.reset()
    assert handler.calls == ["writable", "reset"]


def test_a_stream_that_fails_to_open_is_counted_as_ended() -> None:
    made = Watched()
    with pytest.raises(RuntimeError):
        made.opened(Sent(), {"bad": "headers"})
    assert made.value("streams_inflight") == 1  # the one before
    assert made.value("streams_total", code="Internal") == 1
