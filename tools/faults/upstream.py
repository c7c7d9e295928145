"""Model servers that fail on demand: request headers select the fault.

The response of a healthy one is a stream of events with the length and digest of the request body,
so that the client can tell whether both have passed the gateway unchanged.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import cast

import httptools
import xxhash

METRICS = b"""\
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="tiny"} 0.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="tiny"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="tiny"} 0.25
"""
REFUSAL = b'{"error":{"message":"too long","code":413}}'
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
_NO_LINGER = struct.pack("ii", 1, 0)


class Fault(StrEnum):
    """Fault of a model server."""

    NONE = "none"
    RESET_BEFORE_HEADERS = "reset-before-headers"
    CLOSE_BEFORE_HEADERS = "close-before-headers"
    NO_HTTP = "no-http"
    """The response is not HTTP."""
    RESET_MID_UPLOAD = "reset-mid-upload"
    """Resets the connection after reading a part of the body."""
    RESPONSE_MID_UPLOAD = "response-mid-upload"
    """Answers 413 while the body arrives, and continues to read."""
    RESET_MID_BODY = "reset-mid-body"
    CLOSE_MID_BODY = "close-mid-body"
    """The server closes the connection in the middle of a chunked response."""
    CUT_SHORT = "cut-short"
    """Closes the connection before content-length bytes are sent."""


def response(request_id: str, body_bytes: int, digest: str, events: int) -> list[bytes]:
    """Return the pieces of the response to a request with a body of this length and digest."""
    said = f'{{"id":"{request_id}","bytes":{body_bytes},"digest":"{digest}"}}'
    pieces = [f"data: {said}\n\n".encode()]
    pieces += [b'data: {"choices":[{"text":"%06d"}],"usage":null}\n\n' % n for n in range(events)]
    usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}' % events
    return [*pieces, b"data: " + usage + b"\n\ndata: [DONE]\n\n"]


def reset(transport: asyncio.BaseTransport) -> None:
    """Close a connection with RST instead of FIN."""
    made = cast("asyncio.Transport", transport)
    made.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    made.abort()


class ModelServers:
    """Some servers, and the requests that they hold."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        """``host:port`` of each."""
        self.held: dict[str, Callable[[], None]] = {}
        """Functions that resume waiting requests, by request id."""

    def release(self, request_id: str) -> None:
        """Resume a held request."""
        self.held.pop(request_id)()


@asynccontextmanager
async def model_servers(count: int = 3) -> AsyncIterator[ModelServers]:
    """Run model servers on free ports."""
    servers = ModelServers()
    loop = asyncio.get_running_loop()
    listeners = [
        await loop.create_server(partial(ModelServer, servers), "127.0.0.1", 0, backlog=4096)
        for _ in range(count)
    ]
    servers.addresses = tuple(
        f"127.0.0.1:{listener.sockets[0].getsockname()[1]}" for listener in listeners
    )
    try:
        yield servers
    finally:
        for listener in listeners:
            listener.close()


class ModelServer(asyncio.Protocol):
    """One connection to a model server."""

    def __init__(self, servers: ModelServers) -> None:
        self._servers = servers
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._held = ""
        """Id of the request that this connection holds."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._servers.held.pop(self._held, None)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._digest = xxhash.xxh3_64()
        self._body_bytes = 0
        self._is_answered = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._fault = Fault(self._header(b"x-fault", "none"))
        self._holds = self._header(b"x-hold", "")
        self._request_id = self._header(b"x-request-id", "")

    def on_body(self, body: bytes) -> None:
        self._digest.update(body)
        self._body_bytes += len(body)
        if self._fault is Fault.RESET_MID_UPLOAD:
            self._reset()
        elif self._fault is Fault.RESPONSE_MID_UPLOAD and not self._is_answered:
            self._is_answered = True
            self._write(_head(b"413 Content Too Large", len(REFUSAL)) + REFUSAL)

    def on_message_complete(self) -> None:
        if self._url == b"/metrics":
            self._write(_head(b"200 OK", len(METRICS), b"text/plain; version=0.0.4") + METRICS)
            return
        if self._holds == "headers":
            self._hold(self._respond)
        else:
            self._respond()

    def _hold(self, go_on: Callable[[], None]) -> None:
        def released() -> None:
            self._held = ""
            go_on()

        self._held = self._request_id
        self._servers.held[self._held] = released

    # the response

    def _respond(self) -> None:
        if self._fault is Fault.RESET_BEFORE_HEADERS:
            self._reset()
        elif self._fault is Fault.CLOSE_BEFORE_HEADERS:
            self._close()
        elif self._fault is Fault.NO_HTTP:
            self._write(b"\x00\x01 this is no HTTP\r\n\r\n")
            self._close()
        elif not self._is_answered:
            self._stream()

    def _stream(self) -> None:
        pieces = response(
            self._request_id,
            self._body_bytes,
            self._digest.hexdigest(),
            int(self._header(b"x-events", "4")),
        )
        half = len(pieces) // 2
        if self._fault is Fault.CUT_SHORT:
            length = sum(map(len, pieces))
            self._write(_STREAM + b"content-length: %d\r\n\r\n" % length)
        else:
            self._write(_STREAM + b"transfer-encoding: chunked\r\n\r\n")
            pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        self._write_each(pieces[:half])
        rest = partial(self._end, pieces[half:])
        if self._holds == "body":
            self._hold(rest)
        else:
            rest()

    def _end(self, pieces: list[bytes]) -> None:
        if self._fault is Fault.RESET_MID_BODY:
            self._reset()
        elif self._fault is Fault.CLOSE_MID_BODY:
            self._close()
        elif self._fault is Fault.CUT_SHORT:
            self._write_each(pieces[:-1])
            self._close()
        else:
            self._write_each([*pieces, b"0\r\n\r\n"])

    def _write_each(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._write(piece)

    def _header(self, name: bytes, default: str) -> str:
        return self._headers.get(name, default.encode()).decode("latin-1")

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _reset(self) -> None:
        if self._transport is not None:
            reset(self._transport)


def _head(status: bytes, length: int, content_type: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (
        status,
        content_type,
        length,
    )
