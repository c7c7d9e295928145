"""Cost of each flood to the server, and its effect on other connections.

Each flood has its own server process, with the transport alone. One client sends it as fast as
possible, while another process makes calls on a separate connection.
"""

import argparse
import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import uvloop
from rich.table import Table
from rich.text import Text

from epp.transport.http2 import ErrorCode
from tools import REPOSITORY
from tools.bench import processes
from tools.bench.cpu_time import CpuReading
from tools.soak import frames, server
from tools.soak.connection import Lost, RawConnection

LIMIT_SECONDS = 30.0
MEMORY_LIMIT_MB = 128
NEIGHBOUR_CALLS = 30
"""Minimum number of calls, during the flood or after it."""
NEIGHBOUR_PAUSE_SECONDS = 0.002
UNREAD_SECONDS = 3.0
"""Without a byte taken, after which a server counts as one that has stopped reading."""

_CHUNK_BYTES = 256 << 10
_ONE = (1).to_bytes(4, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One flood."""

    flood: str
    end: str
    """Result: absorbed, no longer read, closed, or the code of the GOAWAY."""
    sent_share: float
    """Share of the flood that was sent before the end."""
    seconds: float
    cpu_seconds: float
    """CPU time of the server."""
    growth_mb: float
    """Maximum growth of the server's memory."""
    calls: int
    """Calls of the neighbour during the flood."""
    failed_calls: int
    median_ms: float
    max_ms: float


@dataclass(slots=True)
class Attack:
    """A flood in progress."""

    port: int
    connections: list[RawConnection] = field(default_factory=list)
    sent_share: float = 0.0
    is_unread: bool = False

    async def connect(self, *settings: tuple[int, int]) -> RawConnection:
        """Open a connection that is greeted as it should be."""
        connection = await RawConnection.connect(self.port, *settings)
        self.connections.append(connection)
        return connection

    async def silent(self, first: bytes = b"") -> RawConnection:
        """Open a connection that says nothing but ``first``."""
        connection = await RawConnection.silent(self.port, first)
        self.connections.append(connection)
        return connection

    async def repeat(self, connection: RawConnection, piece: bytes, count: int) -> None:
        """Send ``piece`` ``count`` times, in large writes."""
        together = max(1, min(count, _CHUNK_BYTES // len(piece)))
        chunk = piece * together
        for number in range(0, count, together):
            await self.write(connection, chunk)
            self.sent_share = min(1.0, (number + together) / count)

    async def each(
        self, connection: RawConnection, make: Callable[[int], bytes], count: int
    ) -> None:
        """Send what ``make`` makes of each of ``count`` new stream ids."""
        together = 500
        for number in range(0, count, together):
            first = connection.take_stream_ids(together)
            ids = range(first, first + 2 * together, 2)
            await self.write(connection, b"".join(map(make, ids)))
            self.sent_share = min(1.0, (number + together) / count)

    async def write(self, connection: RawConnection, data: bytes) -> None:
        """Send; a server that takes nothing for seconds has stopped reading."""
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                await connection.send(data)
        except TimeoutError:
            self.is_unread = True
            raise


Flood = Callable[[Attack], Awaitable[None]]


# --- frames of the connection ---------------------------------------------------------------------


async def _unread(attack: Attack, piece: bytes, count: int) -> None:
    connection = await attack.connect()
    connection.transport.pause_reading()
    await attack.repeat(connection, piece, count)


async def ping(attack: Attack) -> None:
    await _unread(attack, frames.frame(frames.PING, payload=bytes(8)), 1_000_000)


async def settings(attack: Attack) -> None:
    await _unread(attack, frames.settings(), 1_500_000)


async def large_settings(attack: Attack) -> None:
    connection = await attack.connect((frames.INITIAL_WINDOW_SIZE, 0))
    give = frames.message((10_000).to_bytes(4, "big"))
    await attack.each(
        connection, lambda i: frames.call(i, server.GIVE) + frames.data(i, give), 1000
    )
    values = [(frames.INITIAL_WINDOW_SIZE, number % 2) for number in range(2_730)]
    await attack.repeat(connection, frames.settings(*values), 5_000)


async def priority(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.repeat(connection, frames.frame(frames.PRIORITY, 0, 1, bytes(5)), 1_000_000)


async def window_update(attack: Attack) -> None:
    connection = await attack.silent(frames.PREFACE + frames.settings())
    await attack.repeat(connection, frames.window_update(0, 1), 1_000_000)


async def unknown_frames(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.repeat(connection, frames.frame(0xEE, payload=b"x"), 1_000_000)


# --- header blocks --------------------------------------------------------------------------------


async def empty_continuation(attack: Attack) -> None:
    connection = await attack.connect()
    block = frames.literals(frames.call_fields(server.SILENT))
    await attack.write(connection, frames.frame(frames.HEADERS, 0, 1, block))
    await attack.repeat(connection, frames.frame(frames.CONTINUATION, 0, 1), 1_000_000)


async def full_continuation(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.write(connection, frames.frame(frames.HEADERS, 0, 1, b""))
    full = frames.frame(frames.CONTINUATION, 0, 1, bytes(frames.FRAME_BYTES))
    await attack.repeat(connection, full, 10_000)


async def empty_headers(attack: Attack) -> None:
    connection = await attack.connect()
    empty = frames.END_HEADERS | frames.END_STREAM
    await attack.each(connection, lambda i: frames.frame(frames.HEADERS, empty, i), 100_000)


async def different_headers(attack: Attack) -> None:
    connection = await attack.connect()
    fields = frames.call_fields("/no/method")

    def make(stream_id: int) -> bytes:
        unique = (b"x-unique", b"%0120d" % stream_id)
        block = frames.literals((*fields, *[unique] * 20))
        flags = frames.END_HEADERS | frames.END_STREAM
        return frames.frame(frames.HEADERS, flags, stream_id, block)

    await attack.each(connection, make, 20_000)


async def unknown_methods(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.each(connection, lambda i: frames.call(i, f"/no/method-{i}", end=True), 30_000)


# --- streams --------------------------------------------------------------------------------------


async def rapid_reset(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.each(
        connection, lambda i: frames.call(i, server.SILENT) + frames.reset(i), 100_000
    )


async def reset_after_message(attack: Attack) -> None:
    connection = await attack.connect()
    give = frames.message(_ONE)
    await attack.each(
        connection,
        lambda i: frames.call(i, server.GIVE) + frames.data(i, give) + frames.reset(i),
        100_000,
    )


async def provoked_resets(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.each(
        connection, lambda i: frames.call(i, server.SILENT) + frames.window_update(i, 0), 100_000
    )


async def reset_closed(attack: Attack) -> None:
    connection = await attack.connect()
    await connection.call(server.GIVE, _ONE)
    await attack.repeat(connection, frames.reset(1), 1_000_000)


async def idle_streams(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.each(connection, lambda i: frames.call(i, server.SILENT), 20_000)


async def slow_reader(attack: Attack) -> None:
    connection = await attack.connect()
    connection.transport.pause_reading()
    give = frames.message((1 << 20).to_bytes(4, "big"))
    await attack.each(
        connection, lambda i: frames.call(i, server.GIVE) + frames.data(i, give, end=True), 1_000
    )


async def closed_windows(attack: Attack) -> None:
    connection = await attack.connect((frames.INITIAL_WINDOW_SIZE, 0))
    give = frames.message((1 << 20).to_bytes(4, "big"))
    await attack.each(
        connection, lambda i: frames.call(i, server.GIVE) + frames.data(i, give, end=True), 1_000
    )


# --- content --------------------------------------------------------------------------------------


async def empty_data(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.write(connection, frames.call(1, server.SILENT))
    await attack.repeat(connection, frames.data(1, b""), 1_000_000)


async def _content(attack: Attack, piece: bytes, count: int) -> None:
    """Send DATA on one stream, as far as the server's windows allow."""
    connection = await attack.connect()
    await attack.write(connection, frames.call(1, server.SILENT))
    together = _CHUNK_BYTES // len(piece)
    size = together * (len(piece) - 9)
    for number in range(0, count, together):
        async with asyncio.timeout(UNREAD_SECONDS):
            # Both windows are renewed together, by half of the stream's.
            await connection.until_room(size)
        await attack.write(connection, piece * together)
        await connection.ping()
        attack.sent_share = min(1.0, (number + together) / count)


async def one_byte_messages(attack: Attack) -> None:
    message = frames.message(b"x")
    await _content(attack, frames.data(1, message * (frames.FRAME_BYTES // len(message))), 400)


async def one_byte_frames(attack: Attack) -> None:
    connection = await attack.connect()
    await attack.write(connection, frames.call(1, server.SILENT))
    content = frames.message(bytes(500_000))
    whole = b"".join(frames.data(1, content[at : at + 1]) for at in range(len(content)))
    for start in range(0, len(whole), _CHUNK_BYTES):
        await attack.write(connection, whole[start : start + _CHUNK_BYTES])
        attack.sent_share = min(1.0, (start + _CHUNK_BYTES) / len(whole))


# --- connections ----------------------------------------------------------------------------------


async def half_prefaces(attack: Attack) -> None:
    for number in range(900):
        await attack.silent(frames.PREFACE[:12])
        attack.sent_share = (number + 1) / 900


async def half_frames(attack: Attack) -> None:
    half = frames.PREFACE + frames.settings() + frames.data(1, bytes(16_000))[:8_000]
    for number in range(900):
        await attack.silent(half)
        attack.sent_share = (number + 1) / 900


FLOODS: dict[str, Flood] = {
    "1,000,000 PING, acknowledgements not read": ping,
    "1,500,000 SETTINGS, acknowledgements not read": settings,
    "5,000 SETTINGS of 2,730 values, 1,000 open streams": large_settings,
    "1,000,000 empty CONTINUATION": empty_continuation,
    "10,000 full CONTINUATION": full_continuation,
    "100,000 empty HEADERS": empty_headers,
    "1,000,000 empty DATA": empty_data,
    "1,000,000 PRIORITY": priority,
    "1,000,000 WINDOW_UPDATE": window_update,
    "1,000,000 frames of an unknown type": unknown_frames,
    "1,000,000 RST_STREAM on a closed stream": reset_closed,
    "100,000 rapid resets": rapid_reset,
    "100,000 resets after a message": reset_after_message,
    "100,000 resets provoked from the server": provoked_resets,
    "20,000 idle streams": idle_streams,
    "1,000 responses of 1 MB, socket not read": slow_reader,
    "1,000 responses of 1 MB, windows closed": closed_windows,
    "30,000 unknown methods": unknown_methods,
    "20,000 header lists of 2.5 KB, all different": different_headers,
    "1,092,000 messages of one byte": one_byte_messages,
    "500,000 DATA of one byte": one_byte_frames,
    "900 half prefaces": half_prefaces,
    "900 half frames": half_frames,
}


# --- measuring ------------------------------------------------------------------------------------


async def measure() -> list[Row]:
    """Run all floods, one after the other."""
    return [await _measure(name, flood) for name, flood in FLOODS.items()]


async def _measure(name: str, flood: Flood) -> Row:
    async with processes.python("-m", "tools.soak.server") as running:
        port, pid = running.ready["grpc"], running.pid
        attack = Attack(port)
        resident = _memory_mb(pid, "VmRSS")
        async with _neighbour(port) as neighbour:
            # Its own connection and first calls are no part of the flood.
            await asyncio.sleep(0.2)
            before = CpuReading.of(pid)
            end = await _end(attack, flood)
            used = CpuReading.of(pid)
            times, failed = await neighbour()
        if end == "closed":
            end = await _fault(port) or end
        growth = _memory_mb(pid, "VmHWM") - resident
        for connection in attack.connections:
            connection.abort()
        return Row(
            flood=name,
            end=end,
            sent_share=attack.sent_share,
            seconds=used.at - before.at,
            cpu_seconds=used.since(before),
            growth_mb=growth,
            calls=len(times),
            failed_calls=failed,
            median_ms=median(times) * 1e3,
            max_ms=max(times) * 1e3,
        )


async def _end(attack: Attack, flood: Flood) -> str:
    """Run the flood and tell how it ended."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await flood(attack)
            last = attack.connections[-1]
            last.transport.resume_reading()
            if last.frames:
                await last.ping()  # as soon as the flood has been worked off
    except TimeoutError:
        return "not read any more" if attack.is_unread else "not over in time"
    except Lost:
        codes = [code for each in attack.connections for code in each.goaways]
        return f"GOAWAY {ErrorCode(codes[0]).name}" if codes else "closed"
    return "absorbed"


async def _fault(port: int) -> str:
    """The code of the GOAWAY that a connection did not get to read: the server counts them."""
    connection = await RawConnection.connect(port)
    found: dict[str, Any] = msgspec.json.decode(await connection.call(server.STATISTICS, b""))
    connection.abort()
    faults: dict[str, int] = found["counters"]["http2"]["connection_faults"]
    return "".join(f"GOAWAY {name}" for name in faults)


@asynccontextmanager
async def _neighbour(
    port: int,
) -> AsyncIterator[Callable[[], Awaitable[tuple[list[float], int]]]]:
    """A process that makes calls, until asked for their times and how many failed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.bench.floods", "--port", str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )

    async def times() -> tuple[list[float], int]:
        written, _ = await process.communicate(b"")
        found = json.loads(written)
        return found["times"], found["failed"]

    assert process.stdout is not None
    await process.stdout.readline()  # it is connected
    try:
        yield times
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _call_on(port: int) -> None:
    """Make calls until standard input ends; then write their times."""
    loop = asyncio.get_running_loop()
    is_over = asyncio.Event()
    loop.add_reader(sys.stdin, is_over.set)
    connection = await RawConnection.connect(port)
    print("connected", flush=True)
    times: list[float] = []
    failed = 0
    while not is_over.is_set() or len(times) + failed < NEIGHBOUR_CALLS:
        began = time.perf_counter()
        try:
            await connection.call(server.GIVE, _ONE)
        except (Lost, RuntimeError):
            failed += 1
            if connection.is_lost:
                connection = await RawConnection.connect(port)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(NEIGHBOUR_PAUSE_SECONDS)
    print(json.dumps({"times": times, "failed": failed}))


def _memory_mb(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def verdict(rows: list[Row]) -> Text:
    """Say loudly what must not be."""
    bad = [
        f"{row.flood}: {row.end}, {row.growth_mb:.0f} MB, {row.failed_calls} failed calls"
        for row in rows
        if row.growth_mb > MEMORY_LIMIT_MB or row.failed_calls or row.end == "not over in time"
    ]
    if bad:
        return Text("\n".join(["!!! NOT WITHSTOOD !!!", *bad]), style="bold red")
    good = f"All withstood: below {MEMORY_LIMIT_MB} MB, no failed call of a neighbour"
    return Text(good, style="green")


def table(rows: list[Row]) -> Table:
    """One line per flood."""
    made = Table(
        title="Floods on one connection (the last two: on many), and another connection meanwhile",
        title_justify="left",
    )
    made.add_column("flood")
    made.add_column("ends by")
    for column in (
        *("sent", "s", "CPU s", "memory MB", "calls meanwhile", "failed", "median ms", "max ms"),
    ):
        made.add_column(column, justify="right")
    for row in rows:
        made.add_row(*cells(row))
    return made


def cells(row: Row) -> tuple[str, ...]:
    """One line."""
    return (
        *(row.flood, row.end, f"{row.sent_share:.0%}", f"{row.seconds:.2f}"),
        *(f"{row.cpu_seconds:.2f}", f"{row.growth_mb:.0f}", str(row.calls)),
        *(str(row.failed_calls), f"{row.median_ms:.1f}", f"{row.max_ms:.0f}"),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The neighbour of a flood.")
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_call_on(parser.parse_args().port))
