"""The whole request path in one process: from bytes received from Envoy to bytes sent to it.

Without kernel, Envoy and other processes, it measures only the CPU time of our own code, by which
commits can be compared. The EPP's service and the handler that decides nothing get the same bytes.
The least of many short readings counts, since other work on the machine can only add to a reading.
"""

import asyncio
import atexit
import contextlib
import gc
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import cycle
from math import inf

from epp.admin import ExplainSettings
from epp.app import App, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.data_layer.plugins import EndpointSpec
from epp.ext_proc import METHOD
from epp.lab.envoy import Mode
from epp.observability import LogLevel, configure
from epp.request_control.body_work import SHORT_BODY_BYTES
from epp.scheduling import Endpoint, EndpointMetrics
from epp.tracing import TracingSettings
from epp.transport import Http2Server, OpenStream, Stream
from epp.transport.protocol import ConnectionProtocol
from epp.transport.read_scheduling import PauseReason
from tools.bench import wire_bytes
from tools.bench.bare_server import REQUEST_BODY, Handler, replies
from tools.bench.gateways import ENDPOINTS, Case, Reads

OPEN_STREAMS = 16
"""Requests in flight, so that loads and replies are not those of an idle pool."""
_LOOP_SECONDS = 0.05
"""Approximate time of the repetitions between two readings of the clock."""
_FEW_BYTES = 20 << 20
"""Total bytes of long requests that suffice for a measurement."""

_TURNS = 4
"""Maximum iterations of the loop until a long body is decided."""
_LOOK_SECONDS = 0.001
"""Interval of checks whether the loop has finished resting, which takes no CPU time."""
_LONG_BYTES = 16 << 20
_LEAST_RESPONSE_BYTES = 100
"""Minimum length of a reply with a destination only."""

_NULL = open(os.devnull, "w")  # noqa: PTH123, SIM115 - a device, open to the end of the process
atexit.register(_NULL.close)


@dataclass(frozen=True, slots=True)
class Path:
    """One request, from the bytes read to the bytes written."""

    case: Case
    messages: int
    epp_us: float
    """The EPP with the canonical line written to /dev/null."""
    silent_us: float
    """The EPP with log level warning."""
    bare_us: float
    """The handler that decides nothing."""


class NullTransport(asyncio.Transport):
    """Discards all writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written_bytes += len(data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Connection:
    """A connection of the EPP's own transport, after the greeting."""

    def __init__(
        self,
        opened: OpenStream,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
        idling: Callable[[], object] = lambda: None,
    ) -> None:
        """Open it.

        Args:
            opened: Makes the handlers of streams.
            loop: Runs them.
            clock: Limits how long the connection handles what it has read; in seconds.
            idling: Called before and after turns of the loop that only wait.
        """
        self.transport = NullTransport()
        self._idling = idling
        server = Http2Server({METHOD: opened})
        server.backlog.clock = clock
        self._protocol = ConnectionProtocol(server, loop)
        self._protocol.connection_made(self.transport)
        self._protocol.data_received(wire_bytes.greeting())
        self._open: deque[int] = deque()
        self._next_id = 1

    def prepared(self, requests: Sequence[Reads]) -> list[bytes | None]:
        """Return the bytes of some requests, each read by itself; streams end 16 requests later.

        None stands where a turn of the loop has to end: a body that is not short takes a part of
        the time of its turn, or is decided in a later one, and the response comes after that.
        """
        reads: list[bytes | None] = []
        for request in requests:
            sent: list[bytes | None] = [*wire_bytes.request(request, self._next_id)]
            if sum(len(message) for messages in request for message in messages) > SHORT_BODY_BYTES:
                sent.insert(len(sent) - _reads_of_response(request), None)
            reads += sent
            self._open.append(self._next_id)
            self._next_id += 2
            if len(self._open) >= OPEN_STREAMS:
                reads.append(wire_bytes.reset(self._open.popleft()))
        return reads

    async def feed(self, reads: Sequence[bytes | None]) -> None:
        """Read them."""
        received, sender = self._protocol.data_received, self._protocol.connection.sender
        replies = 0
        for read in reads:
            if read is None:
                await self._answered(replies)
            else:
                replies = sender.data_frames
                received(read)

    async def is_whole(self) -> bool:
        """Return whether all reads were handled at once; handle the rest otherwise.

        A connection hands over to others after 5 ms. If this process had no CPU for so long, what
        it has read waits for the next iterations of the loop.
        """
        reasons = self._protocol._pauses.reasons
        while PauseReason.BACKLOG in self._protocol._pauses.reasons:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return PauseReason.BACKLOG not in reasons

    async def _answered(self, before: int) -> None:
        """Wait for a reply, if none was sent at once, and for the end of the turn.

        Args:
            before: Number of replies before the read to be answered.
        """
        turns = 0
        while self._protocol.connection.sender.data_frames == before:
            turns += 1
            await asyncio.sleep(0 if turns < _TURNS else _LOOK_SECONDS)
        self._idling()
        for _ in range(_TURNS if turns else 1):
            await asyncio.sleep(0)
        self._idling()

    def take(self) -> int:
        """Return how many bytes were written since the last time.

        After long replies it makes room for most of them: the 2 GiB that the connection began with
        would not last, and more would end it.
        """
        written, self.transport.written_bytes = self.transport.written_bytes, 0
        if written > _LONG_BYTES:
            self._protocol.data_received(wire_bytes.room(written * 4 // 5))
        return written


async def paths(recorded: Mapping[Case, Reads], repeats: int) -> list[Path]:
    """Measure the whole path for the recorded messages of each case."""
    return [await _path(case, reads, repeats) for case, reads in recorded.items()]


async def _path(case: Case, reads: Reads, repeats: int) -> Path:
    loop = asyncio.get_running_loop()
    with silenced("info"):
        apps = [new_app(), without_log_line()]
        connections = [
            *[await warmed(app, reads) for app in apps],
            Connection(bare_handlers(case.mode), loop),
        ]
        epp, silent, bare = map(min, await in_turns(case, reads, repeats, apps, connections))
    return Path(case, len(wire_bytes.messages_of(reads)), epp, silent, bare)


def without_log_line() -> App:
    """Return an EPP that writes no line of a request that has ended."""
    app = new_app()
    app.pool.director._live._finished.enabled = False
    return app


async def warmed(
    app: App,
    reads: Reads,
    clock: Callable[[], float] = time.monotonic,
    idling: Callable[[], object] = lambda: None,
) -> Connection:
    """Return a connection to ``app`` that has carried some requests; see :class:`Connection`."""
    connection = Connection(app.service.opened, asyncio.get_running_loop(), clock, idling)
    await connection.feed(connection.prepared([reads] * 2 * OPEN_STREAMS))
    return connection


async def in_turns(
    case: Case,
    reads: Reads,
    repeats: int,
    apps: Sequence[App],
    connections: Sequence[Connection],
) -> list[list[float]]:
    """Return the readings of each connection, in CPU microseconds per request; inf for lost ones.

    Args:
        case: The kind of request.
        reads: What Envoy sent for one.
        repeats: Readings of each connection, in turns, so that noise hits all alike.
        apps: Those behind some of the connections.
        connections: What to measure.
    """
    gc.collect()
    gc.freeze()  # as the process does when it is ready
    count = await how_many(connections[0], reads)
    times: list[list[float]] = [[] for _ in connections]
    for repeat in range(repeats):
        requests = list(wire_bytes.distinct(reads, (repeat + 1) * count, count))
        for connection, spent in zip(connections, times, strict=True):
            fed = connection.prepared(requests)
            connection.take()
            began = time.process_time()
            await connection.feed(fed)
            reading_us = (time.process_time() - began) / count * 1e6
            is_whole = await connection.is_whole()
            spent.append(reading_us if is_whole else inf)
            if is_whole:
                check_answered(case, reads, count, connection.take())
        for app in apps:
            refresh(app)
    gc.unfreeze()
    return times


def _reads_of_response(reads: Reads) -> int:
    """Return how many reads come after the last one with a part of the request's body.

    Each of them is short. A response that begins before the request is decided ends the decision.
    """
    after = 0
    for messages in reversed(reads):
        if any(message[0] == REQUEST_BODY for message in messages):
            break
        after += 1
    return after


def check_answered(case: Case, reads: Reads, count: int, written_bytes: int) -> None:
    """Raise an error if less was written than so many requests are answered with."""
    echoed = sum(map(len, wire_bytes.messages_of(reads))) if case.mode is Mode.FULL_DUPLEX else 0
    if written_bytes < count * max(_LEAST_RESPONSE_BYTES, echoed // 2):
        raise RuntimeError(
            f"{case}: {count} requests were answered with {written_bytes} bytes alone:"
            " what was measured is not the whole path"
        )


async def how_many(connection: Connection, reads: Reads) -> int:
    """Return how many requests take about as long as a reading of the clock is to be apart."""
    size = sum(map(len, wire_bytes.messages_of(reads)))
    few = max(2, min(20, _FEW_BYTES // size))
    fed = connection.prepared(list(wire_bytes.distinct(reads, 0, few)))
    began = time.process_time()
    await connection.feed(fed)
    return max(few, int(_LOOP_SECONDS * few / (time.process_time() - began)))


def bare_handlers(mode: Mode) -> OpenStream:
    """Return the handler that decides nothing."""
    reply = replies(mode, cycle(_addresses()))

    def opened(stream: Stream, _: Mapping[str, str]) -> Handler:
        return Handler(stream, reply)

    return opened


@contextlib.contextmanager
def silenced(level: LogLevel) -> Iterator[None]:
    """Log at ``level`` to /dev/null; what is made inside logs there for good."""
    # The file stays open: loggers of modules keep the first one that they saw.
    with redirect_stdout(_NULL):
        configure(level=level)
        yield


def new_app(tracing: TracingSettings | None = None, explain: ExplainSettings | None = None) -> App:
    """Return a whole EPP with a pool that was scraped just now."""
    config = load_text(DEFAULT_CONFIG, "default")
    names = _addresses()
    app = App(
        ServeSettings(
            config=config,
            endpoints=tuple(names),
            tracing=tracing,
            explain=explain or ExplainSettings(),
        )
    )
    app.pool.store.replace_endpoints(
        "bench", [EndpointSpec(f"default/server-{n}", name) for n, name in enumerate(names)]
    )
    refresh(app)
    return app


def refresh(app: App) -> None:
    """Scrape all endpoints, so that what was sent to them does not pile up unseen."""
    now = time.monotonic()
    for number, endpoint in enumerate(app.pool.store.snapshot):
        scraped(endpoint, number, now)


def scraped(endpoint: Endpoint, number: int, now: float) -> Endpoint:
    """Give ``endpoint`` a page that differs from its neighbours'."""
    page = EndpointMetrics(
        waiting_requests=number % 5,
        running_requests=number % 7,
        kv_cache_usage=number % 11 / 20,
        requested_at=now,
    )
    endpoint.metrics = page
    endpoint.load.observe(
        waiting=page.waiting_requests,
        running=page.running_requests,
        kv_cache_usage=page.kv_cache_usage,
        requested_at=now,
    )
    return endpoint


def least_us(call: Callable[[int], object], loops: int, repeats: int) -> float:
    """Return the least CPU time of ``call(n)``, n from 0 to ``loops`` - 1, in microseconds."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        for number in range(loops):
            call(number)
        times.append((time.process_time() - began) / loops * 1e6)
    return min(times)


def _addresses() -> list[str]:
    return [f"10.0.0.{n + 1}:8000" for n in range(ENDPOINTS)]
