"""Hostile model servers: one fails at once, one answers as the request demands.

The second one answers honest requests correctly.
"""

import argparse
import asyncio
import os
from functools import partial
from pathlib import Path
from typing import cast

import httptools
import uvloop

from tools.attacks.attack import Server
from tools.attacks.sending import NICENESS
from tools.bench.processes import announce
from tools.faults.upstream import METRICS

LONG_BYTES = 64_000_000
PIECE_BYTES = 1_000_000
SERIES = 180_000
TEXT_BYTES = 8
"""Two tokens, the number that honest clients request."""
_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"


def _page(extra: int) -> bytes:
    idle = METRICS.replace(b" 0.25", b" 0.0")  # as the healthy ones, so it is picked as often
    lines = [idle, b"# TYPE vllm:noise gauge\n"] if extra else [idle]
    lines += [
        b'vllm:noise{model_name="tiny",of="%d",more="abcdefghijklmnop"} 1.0\n' % number
        for number in range(extra)
    ]
    page = b"".join(lines)
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n"
    )
    return head % len(page) + page


def _document(body: bytes, content_type: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (content_type, len(body)) + body


_TEXT = b"a" * TEXT_BYTES
_EVENT = b'data: {"choices":[{"text":"%b","delta":{"content":"x"}}],"usage":null}\n\n'
_WHOLE = _document(b'{"choices":[{"text":"' + _TEXT + b'"}],"usage":{"completion_tokens":2}}')
_STREAM = _document(_EVENT % _TEXT + b"data: [DONE]\n\n", b"text/event-stream")
_FAILURE = b"HTTP/1.1 500 Internal Server Error\r\nx-failing: 1\r\ncontent-length: 2\r\n\r\n{}"
_WILD = b"".join(
    b'data: {"choices":[],"usage":{"prompt_tokens":%b,"completion_tokens":%b}}\n\n' % (each, each)
    for each in (
        b"-1",
        b"1e308",
        b"9" * 4_000,
        b'"x"',
        b"[]",
        b"null",
        b"NaN",
        b"18446744073709551616",
    )
)


class HostileServer(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, kind: Server, page: bytes) -> None:
        self._kind, self._page = kind, page
        self._parser = httptools.HttpRequestParser(self)
        self._may_write = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._url, self._wanted, self._body = b"", b"", bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-response":
            self._wanted = value

    def on_body(self, body: bytes) -> None:
        if len(self._body) < PIECE_BYTES:
            self._body += body

    def on_message_complete(self) -> None:
        if self._url == b"/metrics":
            self._transport.write(self._page)
        elif self._kind is Server.FAILING:
            self._transport.write(_FAILURE)
        elif not self._wanted:
            is_streamed = b'"stream": true' in self._body
            self._transport.write(_STREAM if is_streamed else _WHOLE)
        else:
            self._task = asyncio.get_running_loop().create_task(self._talk(self._wanted))

    async def _talk(self, kind: bytes) -> None:
        more = b"".join(b"x-more-%d: %b\r\n" % (n, b"v" * 600) for n in range(80))
        self._transport.write(_SSE + (more if kind == b"headers" else b"x-long: 1\r\n") + b"\r\n")
        piece = {
            b"events": (_EVENT % b"a") * (PIECE_BYTES // len(_EVENT)),
            b"usage": _WILD,
            b"headers": b"data: [DONE]\n\n",
        }.get(kind, b"a" * PIECE_BYTES)
        count = 1 if kind in {b"usage", b"headers"} else LONG_BYTES // PIECE_BYTES
        for _ in range(count):
            self._transport.write(piece)
            await self._may_write.wait()
            await asyncio.sleep(0)
        self._transport.close()


async def serve(kinds: list[Server], ready_file: Path) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    found = {}
    for kind in kinds:
        page = _page(SERIES if kind is Server.LARGE_PAGE else 0)
        listener = await loop.create_server(partial(HostileServer, kind, page), "127.0.0.1", 0)
        found[kind.value] = listener.sockets[0].getsockname()[1]
    announce(ready_file, found)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("kinds", nargs="*", type=Server)
    given = parser.parse_args()
    os.nice(NICENESS)
    uvloop.run(serve(given.kinds, given.ready_file))
