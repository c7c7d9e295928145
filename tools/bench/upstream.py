"""Model servers with minimal cost: one process, many ports, responses in N chunks.

The headers of a request choose the response: ``x-bench-chunks`` pieces, ``x-bench-pause-ms`` apart.
Several pieces are the events of a completion as vLLM streams it: each has a field ``usage``, which
is null except in the last. One piece is a JSON document.
"""

import argparse
import asyncio
from functools import partial
from pathlib import Path
from typing import cast

import httptools
import uvloop

from tools.bench.processes import announce

_EVENT = (
    b'data: {"id":"cmpl-bench","object":"text_completion","created":1795305600,"model":"bench",'
    b'"choices":[{"index":0,"text":" yes","logprobs":null,"finish_reason":null}],"usage":%s}\n\n'
)
_USAGE = b'{"prompt_tokens":120,"completion_tokens":%d,"total_tokens":%d}'

METRICS = b"""\
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="bench"} 0.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="bench"} %d
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="bench"} 0.25
"""


class ModelServer:
    """State that the connections of one port share."""

    def __init__(self, number: int) -> None:
        self.served_by = b"x-served-by: server-%d\r\n" % number
        self.running = 0
        """Responses under way. A page that hid them would unsettle the EPP's view of the load."""


class RoutedRequest(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: ModelServer) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._chunks = 1
        self._pause_seconds = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._chunks, self._pause_seconds = 1, 0.0

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-bench-chunks":
            self._chunks = int(value)
        elif name == b"x-bench-pause-ms":
            self._pause_seconds = float(value) / 1000

    def on_message_complete(self) -> None:
        if self._url == b"/metrics":
            self._write(self._whole(b"text/plain; version=0.0.4", METRICS % self._server.running))
        elif self._chunks == 1:
            body = b'{"choices":[{"text":"yes"}],"usage":%s}' % _usage(1)
            self._write(self._whole(b"application/json", body))
        else:
            self._server.running += 1
            self._write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n" + self._server.served_by + b"\r\n"
            )
            self._piece(1, self._chunks, self._pause_seconds)

    def _piece(self, number: int, chunks: int, pause_seconds: float) -> None:
        piece = _EVENT % (_usage(chunks) if number == chunks else b"null")
        if number == chunks:
            piece += b"data: [DONE]\n\n"
        self._write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if number == chunks:
            self._server.running -= 1
            self._write(b"0\r\n\r\n")
        elif pause_seconds:
            loop = asyncio.get_running_loop()
            loop.call_later(pause_seconds, self._piece, number + 1, chunks, pause_seconds)
        else:
            self._piece(number + 1, chunks, pause_seconds)

    def _whole(self, content_type: bytes, body: bytes) -> bytes:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n"
        return head % (content_type, len(body), self._server.served_by) + body

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _usage(tokens: int) -> bytes:
    return _USAGE % (tokens, 120 + tokens)


async def main(ports: int, ready_file: Path) -> None:
    loop = asyncio.get_running_loop()
    endpoints = []
    for number in range(ports):
        server = await loop.create_server(
            partial(RoutedRequest, ModelServer(number)), "127.0.0.1", 0
        )
        endpoints.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    announce(ready_file, {"endpoints": endpoints})
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ports", type=int, default=10)
    parser.add_argument("--ready-file", type=Path, required=True)
    given = parser.parse_args()
    uvloop.run(main(given.ports, given.ready_file))
