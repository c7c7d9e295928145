"""A connection that has read more than it can handle in one turn continues in later iterations."""

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from epp.transport import Http2Server, Stream
from epp.transport.read_scheduling import TURN_SECONDS, ReadBacklog
from tools.harness.in_memory import InMemory, Timers, connect
from tools.harness.raw_client import METHOD, Idle, data, headers, message, reset

REQUEST_SECONDS = TURN_SECONDS / 2
"""Time that the handlers of these tests take for a message."""
HEADER_BLOCKS = 128
"""Number of header blocks decoded at once."""
A_TURN = 2
"""Number of messages that fit in a turn."""


class Work:
    """Slow handlers, and their calls in order."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.opening_seconds = 0.0
        self.done: list[str] = []

    def clock(self) -> float:
        return self.seconds

    def connect(self, server: Http2Server | None = None) -> InMemory:
        if server is None:
            server = Http2Server({METHOD: self._opened})
            server.backlog = ReadBacklog(self.clock)
        return connect({}, server=server)

    def _opened(self, stream: Stream, metadata: Mapping[str, str]) -> "Busy":
        self.seconds += self.opening_seconds
        return Busy(stream, metadata, self)


class Busy(Idle):
    """Takes some time for each message."""

    def __init__(self, stream: Stream, metadata: Mapping[str, str], work: Work) -> None:
        super().__init__(stream, metadata)
        self._work = work

    def message(self, data: bytes) -> None:
        self._work.seconds += REQUEST_SECONDS
        self._work.done.append(data.decode())

    def half_closed(self) -> None:
        self.stream.finish()

    def reset(self) -> None:
        self._work.done.append("reset")


def requests(count: int, name: str = "") -> bytes:
    """Return the frames of ``count`` requests with one message each."""
    return b"".join(
        headers(stream_id) + data(stream_id, message(b"%b%d" % (name.encode(), number)), end=True)
        for number, stream_id in enumerate(range(1, 2 * count, 2))
    )


def turn(client: InMemory) -> None:
    """Run one iteration of the loop."""
    client.timers.run()
    client.read()


def all_turns(*clients: InMemory) -> int:
    """Run iterations until nothing is left to do; return their number."""
    count = 0
    while any(client.timers.timers for client in clients):
        for client in clients:
            turn(client)
        count += 1
    return count


def test_read_of_many_requests_is_handled_in_turns_and_in_order() -> None:
    work = Work()
    client = work.connect()
    client.send(requests(7))
    assert len(work.done) == A_TURN
    assert client.transport.is_reading_paused
    for _ in range(2):
        turn(client)
    assert len(work.done) == 3 * A_TURN
    all_turns(client)
    assert work.done == [str(number) for number in range(7)]
    assert not client.transport.is_reading_paused
    assert not client.protocol.connection.streams
    assert not client.server.backlog


def test_header_blocks_are_decoded_in_turns() -> None:
    work = Work()
    work.opening_seconds = TURN_SECONDS
    client = work.connect()
    counters = client.server.counters.http2
    ids = range(1, 8 * HEADER_BLOCKS, 2)
    client.send(b"".join(map(headers, ids)))
    decoded = {counters.streams_opened}
    while client.timers.timers:
        turn(client)
        decoded.add(counters.streams_opened)
    assert decoded == {HEADER_BLOCKS * turns for turns in (1, 2, 3, 4)}
    assert len(client.protocol.connection.streams) == len(ids)
    assert not client.transport.is_reading_paused


def test_responses_are_written_at_the_end_of_each_turn() -> None:
    work = Work()
    client = work.connect()
    assert client.send(requests(3 * A_TURN)) == 1
    before = client.read_writes
    turn(client)
    assert client.read_writes == before + 1


def test_bytes_read_during_a_backlog_are_handled_in_order() -> None:
    work = Work()
    client = work.connect()
    client.send(requests(A_TURN + 1))
    client.send(headers(99) + data(99, message(b"later")))  # TLS may have had it already
    assert len(work.done) == A_TURN
    all_turns(client)
    assert work.done == ["0", "1", "2", "later"]


def test_connections_take_turns() -> None:
    work = Work()
    first = work.connect()
    second = work.connect(first.server)
    first.send(requests(3 * A_TURN, "a"))
    second.send(requests(2 * A_TURN, "b"))
    assert [name[0] for name in work.done] == ["a"] * A_TURN  # the second one began behind it
    all_turns(first, second)
    assert "".join(name[0] for name in work.done) == "aaaabbaabb"


def test_connection_with_little_to_handle_precedes_busy_ones() -> None:
    work = Work()
    busy = work.connect()
    busier, light = work.connect(busy.server), work.connect(busy.server)
    busy.send(requests(20 * A_TURN, "a"))
    busier.send(requests(20 * A_TURN, "b"))
    for client in (busy, busier) * 5:
        turn(client)
    before = len(work.done)
    light.send(requests(2 * A_TURN, "c"))
    all_turns(busy, busier, light)
    # handled when it is read, as it has used less time, and again after each busy one
    assert "".join(name[0] for name in work.done[before:]).startswith("ccbbaacc")


def test_connection_that_has_used_less_time_is_handled_when_it_is_read() -> None:
    work = Work()
    busy = work.connect()
    light = work.connect(busy.server)
    busy.send(requests(20 * A_TURN, "a"))
    for _ in range(5):
        turn(busy)
    ids = range(1, 8 * A_TURN, 2)
    for stream_id in ids:
        light.send(headers(stream_id) + data(stream_id, message(b"b"), end=True))
    at_once = work.done.count("b")
    assert A_TURN <= at_once < len(ids)  # then the busy one has used less
    all_turns(busy, light)
    assert work.done.count("b") == len(ids)


def test_two_events_are_handled_without_a_time_limit() -> None:
    work = Work()
    client = work.connect()
    client.send(headers(1) + data(1, message(b"0")))
    assert work.done == ["0"]
    assert not client.transport.is_reading_paused
    assert client.timers.timers == []


def test_lost_connection_resets_every_handler_once_despite_a_backlog() -> None:
    work = Work()
    client = work.connect()
    opened = b"".join(headers(stream_id) for stream_id in range(1, 9, 2))
    client.send(opened)
    messages = b"".join(data(stream_id, message(b"m")) for stream_id in range(1, 9, 2))
    client.send(messages + reset(1) + reset(3))
    assert work.done == ["m"] * A_TURN
    client.protocol.connection_lost(None)
    assert work.done == ["m"] * A_TURN + ["reset"] * 4
    all_turns(client)
    assert work.done == ["m"] * A_TURN + ["reset"] * 4
    assert not client.server.backlog


def test_failing_connection_does_not_block_the_backlog() -> None:
    backlog, timers, seen = ReadBacklog(), Timers(), list[int]()
    loop = cast("asyncio.AbstractEventLoop", timers)  # no more of a loop is needed

    class Failing:
        virtual_seconds = 0.0

        def handle_more(self) -> bool:
            raise ValueError("a bug")

    class Sound:
        virtual_seconds = 0.0

        def handle_more(self) -> bool:
            seen.append(1)
            return len(seen) < 3

    backlog.add(Failing(), loop)
    backlog.add(Sound(), loop)
    with pytest.raises(ValueError, match="a bug"):
        timers.run()
    while timers.timers:
        timers.run()
    assert len(seen) == 3
