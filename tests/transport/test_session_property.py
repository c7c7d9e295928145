"""Random calls, split anywhere, with handlers that respond, end and fail as instructed.

A handler always gets everything in order, its end exactly once, and nothing after it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.transport import Stream
from tools.harness.in_memory import InMemory, connect
from tools.harness.raw_client import (
    METHOD,
    Response,
    data,
    fields,
    headers,
    message,
    reset,
)


class HandlerError(Exception):
    """Raised by handlers."""


@dataclass
class Obedient:
    """Does what each message says; asserts that it is not called after the end."""

    stream: Stream
    metadata: Mapping[str, str]
    heard: list[bytes] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    is_half_closed: bool = False
    has_finished: bool = False
    has_failed: bool = False
    resets: int = 0

    @property
    def is_over(self) -> bool:
        return self.has_finished or self.has_failed or self.resets > 0

    def message(self, data: bytes) -> None:
        assert not self.is_over
        assert not self.is_half_closed
        self.heard.append(data)
        self.obey(data)

    def half_closed(self) -> None:
        assert not self.is_over
        assert not self.is_half_closed
        self.is_half_closed = True
        self.obey(self.metadata["x-at-the-end"].encode())

    def writable(self) -> None:
        assert not self.is_over

    def reset(self) -> None:
        assert not self.has_finished
        self.resets += 1

    def obey(self, what: bytes) -> None:
        if what.startswith(b"send"):
            self.stream.send(what)
            self.sent.append(what)
        elif what.startswith(b"finish"):
            self.has_finished = True
            self.stream.finish()
            self.stream.send(b"ignored")
            self.stream.finish(13)
        elif what.startswith(b"fail"):
            self.has_failed = True
            raise HandlerError


commands = st.sampled_from([b"send", b"send" + b"x" * 3000, b"finish", b"fail", b"listen", b""])
ends = st.sampled_from(["end", "reset", "cut short", "bad", "nothing"])
at_the_end = st.sampled_from(["finish", "fail", "listen", "send"])
calls = st.tuples(st.lists(commands, max_size=5), ends, at_the_end)


def frames_of(
    stream_id: int, messages: list[bytes], end: str, at_the_end: str, size: int
) -> Iterator[bytes]:
    """The frames of one call, with DATA of ``size`` bytes."""
    yield headers(stream_id, fields(x_at_the_end=at_the_end, grpc_timeout="5S"))
    stream = b"".join(map(message, messages))
    if end == "cut short":
        stream += message(b"never whole")[:-1]
    elif end == "bad":
        stream += message(b"flag", flag=7)
    for start in range(0, len(stream), size):
        yield data(stream_id, stream[start : start + size])
    if end in ("end", "cut short"):
        yield data(stream_id, end=True)
    elif end == "reset":
        yield reset(stream_id)


def check(handler: Obedient, sent: list[bytes], response: Response) -> None:
    """Assert that a handler and its client agree on what happened."""
    assert handler.heard == sent[: len(handler.heard)]
    assert response.messages == handler.sent[: len(response.messages)]
    if handler.has_failed:
        assert handler.resets == 1
        assert response.status in (13, None)
    if response.status == 0:
        assert handler.has_finished
        assert handler.resets == 0
        assert response.messages == handler.sent


@given(
    st.lists(calls, min_size=1, max_size=6),
    st.integers(1, 400),
    st.sampled_from(["deadline", "lost", "end of file"]),
)
def test_every_call_ends_once_and_leaks_nothing(
    given_calls: list[tuple[list[bytes], str, str]],
    size: int,
    finale: str,
) -> None:
    handlers: list[Obedient] = []

    def opened(stream: Stream, metadata: Mapping[str, str]) -> Obedient:
        handlers.append(Obedient(stream, metadata))
        return handlers[-1]

    client = connect({METHOD: opened})
    # Streams are opened in order; then their frames are interleaved.
    turns = [
        list(frames_of(2 * n + 1, messages, end, at_the_end, size))
        for n, (messages, end, at_the_end) in enumerate(given_calls)
    ]
    stream = b"".join(frames.pop(0) for frames in turns)
    while any(turns):
        stream += b"".join(frames.pop(0) for frames in turns if frames)
    with capture_logs() as lines:
        for start in range(0, len(stream), size * 3):
            client.send(stream[start : start + size * 3])
        end_of_all(client, finale)
    client.read()
    assert client.goaways == []
    assert len(handlers) == len(given_calls)
    for n, (handler, (messages, _, _)) in enumerate(zip(handlers, given_calls, strict=True)):
        assert handler.has_finished + handler.resets == 1
        check(handler, messages, client.streams.get(2 * n + 1, Response()))
    failed = sum(handler.has_failed for handler in handlers)
    assert [line["event"] for line in lines] == ["stream handler failed"] * failed
    assert client.protocol.connection.budget.used_bytes == 0
    assert all(timer.is_cancelled for timer in client.timers.timers)


def end_of_all(client: InMemory, finale: str) -> None:
    """End the streams that are still open."""
    if finale == "deadline":
        client.timers.run()
        assert client.protocol.connection.streams == {}
    elif finale == "lost":
        client.protocol.connection_lost(None)
    else:
        client.protocol.eof_received()
