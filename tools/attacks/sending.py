"""Sends attack requests and counts their outcomes."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from epp.lab.load.client import ConnectionPool, ResponseReceiver
from epp.lab.load.errors import RequestFailedError

HOST = "127.0.0.1"
NICENESS = 10
"""Niceness of attackers and their servers, which in reality run on other machines."""
TIMEOUT_SECONDS = 60.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def head(length: int, path: str = CHAT, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the head of a POST; ``length`` below 0 for a body in chunks."""
    framing = f"content-length: {length}" if length >= 0 else "transfer-encoding: chunked"
    lines = [
        f"POST {path} HTTP/1.1",
        "host: gateway",
        "content-type: application/json",
        framing,
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def post(body: bytes, path: str = CHAT, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a POST."""
    return head(len(body), path, headers) + body


async def exchanged(
    pool: ConnectionPool, request: bytes, response: ResponseReceiver, limit_seconds: float
) -> str:
    """Send ``request`` and read its response; return the error, "" for none."""
    try:
        async with asyncio.timeout(limit_seconds):
            connection = await pool.acquire()
            try:
                await connection.exchange(request, response)
            finally:
                pool.release(connection)
    except TimeoutError:
        return f"no end in {limit_seconds:.0f} s"
    except RequestFailedError:
        return "broken off"
    return ""


class _Discarding:
    """Receives a response and discards its body."""

    status = 0
    headers: Mapping[bytes, bytes] = {}

    def on_headers(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self.status, self.headers = status, headers

    def on_body(self, chunk: bytes) -> bool:
        return True


class Sender:
    """Sends on persistent connections, at most ``at_once`` requests at a time."""

    def __init__(self, port: int, tally: Counter[str], at_once: int) -> None:
        self._pool = ConnectionPool(HOST, port)
        self._tally = tally
        self._at_once = at_once
        self._open = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pool.aclose()

    def launch(self, tasks: asyncio.TaskGroup, request: bytes) -> None:
        """Send a request in a task, unless too many are open."""
        if self._open >= self._at_once:
            self._tally["not sent"] += 1
            return
        self._open += 1
        self._tally["sent"] += 1
        tasks.create_task(self._send(request))

    async def _send(self, request: bytes) -> None:
        try:
            await self.ask(request)
        finally:
            self._open -= 1

    async def ask(self, request: bytes) -> Mapping[bytes, bytes]:
        """Send a request; return the headers of the response when it has ended."""
        response = _Discarding()
        failure = await exchanged(self._pool, request, response, TIMEOUT_SECONDS)
        self._tally[failure or str(response.status)] += 1
        return response.headers
