"""``epp serve`` whose log nobody reads: the real process, its standard output a pipe."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from epp.ext_proc import METHOD
from epp.lab.envoy import Mode
from tools.soak import frames
from tools.soak.connection import RawConnection

pytestmark = pytest.mark.integration

SERVE = (
    *("serve", "--secure-serving=false", "--host", "127.0.0.1", "--endpoint", "127.0.0.1:1"),
    *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
)
PIPE_BYTES = 64 << 10
QUEUE_BYTES = 64 << 10
LINE_BYTES = 200
"""A line is never shorter."""
REQUESTS = 2 * (PIPE_BYTES + QUEUE_BYTES) // LINE_BYTES


@dataclass(slots=True)
class Serving:
    process: asyncio.subprocess.Process
    ports: dict[str, int]
    reading: int
    """The other end of its standard output."""

    async def request(self, count: int) -> None:
        """Send requests one after the other, each answered before the next."""
        connection = await RawConnection.connect(self.ports["grpc"])
        for _ in range(count):
            body = json.dumps({"model": "m" * 100, "prompt": "Hello"}).encode()
            stream_id = connection.take_stream_ids(1)
            messages = b"".join(map(frames.message, frames.request_messages(Mode.LEAN, body)))
            await connection.send(
                frames.call(stream_id, METHOD) + frames.data(stream_id, messages, end=True)
            )
            await connection.until_ended(stream_id // 2 + 1)
        assert not connection.failed
        connection.abort()

    async def dropped(self) -> dict[str, float]:
        async with httpx.AsyncClient(trust_env=False) as http:
            page = (await http.get(f"http://127.0.0.1:{self.ports['metrics']}/metrics")).text
        name = "llm_d_epp_log_lines_dropped_total"
        lines = [line for line in page.splitlines() if line.startswith(name)]
        return {line.split('"')[1]: float(line.split()[-1]) for line in lines}

    async def ended(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            return await self.process.wait()


@asynccontextmanager
async def serving(folder: Path, *options: str) -> AsyncIterator[Serving]:
    """Run an endpoint picker whose output goes into a pipe."""
    ready = folder / "ready"
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", *SERVE, "--ready-file", str(ready), *options),
        stdout=writing,
        stderr=writing,
    )
    os.close(writing)
    try:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(ready.exists):
                assert process.returncode is None
                await asyncio.sleep(0.01)
        ports = json.loads(await asyncio.to_thread(ready.read_text))
        yield Serving(process, ports, reading)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(reading)


async def read(descriptor: int, until: bytes = b"") -> bytes:
    """Return what can be read until the end, or until some of it was read."""
    text = b""
    while piece := await asyncio.to_thread(os.read, descriptor, 1 << 20):
        text += piece
        if until and until in text:
            break
    return text


def entries(text: bytes) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_a_pipe_that_nobody_reads_stops_no_request_and_not_the_end(
    tmp_path: Path, log_format: str
) -> None:
    options = ("--log-queue-bytes", str(QUEUE_BYTES), "--log-format", log_format)
    async with serving(tmp_path, *options) as epp, asyncio.timeout(60):
        await epp.request(REQUESTS)
        assert (await epp.dropped())["queue-full"] > 0
        assert await epp.ended() == 0


async def test_lines_come_again_and_tell_how_many_were_dropped(tmp_path: Path) -> None:
    options = ("--log-queue-bytes", str(QUEUE_BYTES))
    async with serving(tmp_path, *options) as epp, asyncio.timeout(60):
        await epp.request(REQUESTS)
        dropped = (await epp.dropped())["queue-full"]
        written = await read(epp.reading, until=b"log lines dropped")
        rest = asyncio.create_task(read(epp.reading))
        assert await epp.ended() == 0
        lines = entries(written + await rest)
        counts = [line["count"] for line in lines if line["event"] == "log lines dropped"]
        finished = [line for line in lines if line["event"] == "request finished"]
        assert sum(counts) >= dropped
        assert len(finished) + sum(counts) >= REQUESTS
        assert lines[-1]["event"] == "endpoint picker stopped"


async def test_every_line_is_written_by_the_end_of_the_process(tmp_path: Path) -> None:
    async with serving(tmp_path) as epp, asyncio.timeout(60):
        written = asyncio.create_task(read(epp.reading))
        await epp.request(300)
        assert await epp.ended() == 0
        lines = entries(await written)
    events = [line["event"] for line in lines]
    assert events.count("request finished") == 300
    assert events[-1] == "endpoint picker stopped"
    stamps = [datetime.fromisoformat(line["timestamp"]) for line in lines]
    assert stamps == sorted(stamps)
