"""Requests with a known response, and an HTTP/1.1 client that controls every byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import httptools
import xxhash

from epp.lab.fleet.upstream import UpstreamResponse
from tools.faults import upstream
from tools.faults.upstream import Fault

PATH = "/v1/completions"
CLIENT_SECONDS = 120.0
"""Maximum time of one request, whatever the fault."""
BROKEN = (OSError, httptools.HttpParserError)
"""Exceptions from reading a truncated response."""


@dataclass(frozen=True, slots=True)
class Request:
    """A completion request with a known response."""

    request_id: str
    body: bytes
    events: int = 4
    """Number of events of the response."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers."""

    @property
    def fields(self) -> dict[str, str]:
        """The headers of the request, without those for its framing."""
        wanted = {
            "content-type": "application/json",
            "x-request-id": self.request_id,
            "x-events": str(self.events),
        }
        return wanted | self.headers

    @property
    def head(self) -> bytes:
        """The head of the HTTP/1.1 request."""
        fields = {"host": "gateway", **self.fields, "content-length": str(len(self.body))}
        lines = [f"POST {PATH} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode()

    @property
    def response(self) -> bytes:
        """The body of the only correct response."""
        digest = xxhash.xxh3_64_hexdigest(self.body)
        return b"".join(upstream.response(self.request_id, len(self.body), digest, self.events))


def make_request(
    number: int,
    chooser: Random,
    *,
    prompt_bytes: int | None = None,
    events: int | None = None,
    fault: Fault = Fault.NONE,
    hold: str = "",
) -> Request:
    """Return a request with a unique prompt, by default of 10 bytes to 100 KB, mostly short."""
    if prompt_bytes is None:
        prompt_bytes = chooser.choice((10, 500, 5_000, 100_000))
    if events is None:
        events = chooser.choice((2, 8, 60))
    prompt = (f"{number} said " * (1 + prompt_bytes // 8))[:prompt_bytes]
    body = f'{{"model": "tiny", "stream": true, "max_tokens": {events}, "prompt": "{prompt}"}}'
    headers = {} if fault is Fault.NONE else {"x-fault": fault.value}
    if hold:
        headers["x-hold"] = hold
    return Request(f"request-{number}", body.encode(), events, headers)


@dataclass(slots=True)
class Connection:
    """A client's connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Write bytes, and wait while the gateway does not read."""
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> UpstreamResponse:
        """Read the head of the response.

        Raises:
            ConnectionError: The connection ended.
        """
        coming = UpstreamResponse("gateway", self.reader)
        await coming.read_head()
        return coming

    async def leave(self, *, with_reset: bool) -> None:
        """Close the connection, even in the middle of an exchange."""
        if with_reset:
            upstream.reset(self.writer.transport)
        else:
            self.writer.close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    """Connect to the gateway, with a time limit for the whole block."""
    async with asyncio.timeout(CLIENT_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield Connection(reader, writer)
        finally:
            writer.transport.abort()


async def ask(port: int, request: Request) -> tuple[int, bytes]:
    """Make a request on a connection of its own; return its status and the body of the response.

    Raises:
        ConnectionError: The response was truncated.
    """
    async with connected(port) as connection:
        await connection.send(request.head + request.body)
        coming = await connection.response()
        return coming.status, await coming.body()


async def asked(port: int, request: Request) -> str:
    """Make a request that must succeed; return what is wrong with the response, "" for nothing."""
    try:
        status, body = await ask(port, request)
    except BROKEN as error:
        return f"{request.request_id} was broken off: {error!r}"
    return judged(request, status, body)


def judged(request: Request, status: int, body: bytes) -> str:
    """Return what is wrong with a response, "" for nothing."""
    if status == 200 and body == request.response:
        return ""
    return f"{request.request_id} was answered {status} with {len(body)} bytes: {body[:200]!r}"


async def at_most(limit: int, work: Iterable[Awaitable[None]]) -> None:
    """Await all of ``work``, at most ``limit`` at a time."""
    left = iter(work)

    async def do() -> None:
        for each in left:
            await each

    async with asyncio.TaskGroup() as tasks:
        for _ in range(limit):
            tasks.create_task(do())
