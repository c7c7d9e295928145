"""The fake servers' own record of each request, with which reports compare other accounts."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import msgspec

KEPT = 100_000
"""Maximum number of requests kept in memory; a file has all of them."""

WRITE_SECONDS = 1.0
"""Time after which the file has a request that has ended."""
_encode = msgspec.json.encode


class ServedRequest(msgspec.Struct, kw_only=True, omit_defaults=False):
    """One generation request on one server; times are seconds since the epoch."""

    request_id: str
    """`x-request-id` of the request; a retry has the same one."""
    worker: int
    """Index of the server."""
    server: str
    """Name of the server, as in `x-served-by`."""
    restarts: int
    """How often the server had restarted."""
    path: str
    """Path of the API."""
    stage: str | None
    """Its part of the work: prefill, decode, encode, forwarded; None if it was not begun."""
    outcome: str
    """`completed`, `aborted` (the client left or the server crashed) or `refused`."""
    status: int
    """HTTP status; 0 without a response."""
    arrived_at: float
    admitted_at: float | None = None
    """When it first joined the batch."""
    first_token_at: float | None = None
    finished_at: float
    model: str | None = None
    """Model or adapter that it named."""
    adapter: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens from the prefix cache or another server."""
    transferred_tokens: int = 0
    """Those of `cached_tokens` that another server transferred."""
    output_tokens: int = 0
    preemptions: int = 0
    rank: int | None = None
    """Data-parallel rank that served it."""


class RequestLog:
    """The requests of a fleet in the order in which they ended."""

    def __init__(self, file: Path | None = None) -> None:
        """Empty the file, if there is one.

        Raises:
            OSError: It cannot be written.
        """
        self.begun = asyncio.Event()
        """Set when the first request has arrived."""
        self.received = 0
        """Number of requests that have arrived."""
        self.ended = 0
        """Number of requests that have ended."""
        self._kept: deque[ServedRequest] = deque(maxlen=KEPT)
        self._file = file
        self._unwritten: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writes: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        if file is not None:
            file.open("wb").close()

    def arrived(self) -> None:
        """Count a request that has arrived."""
        self.received += 1
        self.begun.set()

    def add(self, request: ServedRequest) -> None:
        """Add a request that has ended."""
        self.ended += 1
        self._kept.append(request)
        if self._file is not None:
            self._unwritten.append(_encode(request) + b"\n")
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(WRITE_SECONDS, self._start_write)

    def lines(self) -> bytes:
        """Return the latest requests as JSON lines."""
        return b"".join([_encode(each) + b"\n" for each in self._kept])

    async def close(self) -> None:
        """Write what the file lacks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._write()

    def _start_write(self) -> None:
        self._timer = None
        task = asyncio.create_task(self._write(), name="request log")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self) -> None:
        async with self._lock:
            text, self._unwritten = b"".join(self._unwritten), []
            if text and self._file is not None:
                await asyncio.to_thread(_append, self._file, text)


def _append(file: Path, text: bytes) -> None:
    with file.open("ab") as opened:
        opened.write(text)
