"""An ext_proc server without decisions: the lower bound of the EPP's cost on its transport.

It answers each message by its first byte, with prebuilt bytes; bodies are returned unchanged, since
HttpBody and StreamedBodyResponse have the same fields 1 and 2. With ``--plain`` the handler runs on
grpc.aio without the EPP's adapter. With ``--record FILE`` each stream becomes a line of that file,
with the messages grouped by read, for the in-process benchmarks.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import uvloop
from grpc import aio

from epp.ext_proc import METHOD, processing_response
from epp.lab.envoy import Mode
from epp.transport import Http2Server
from epp.transport.grpcio import GrpcioServer
from epp.transport.interface import Stream
from tools.bench.processes import announce

# Tags of ProcessingRequest.request: field number * 8 + 2.
REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY = 0x12, 0x1A, 0x22, 0x2A
REQUEST_TRAILERS, RESPONSE_TRAILERS = 0x32, 0x3A
_MORE = 0x80  # set in each byte of a varint but the last

Replier = Callable[[bytes], bytes]


def replies(mode: Mode, destinations: Iterator[str]) -> Replier:
    """Return the function from a message to its reply."""
    adaptive = mode is Mode.ADAPTIVE
    constant = {
        REQUEST_TRAILERS: processing_response.CONTINUE_REQUEST_TRAILERS,
        RESPONSE_HEADERS: processing_response.CONTINUE_RESPONSE_HEADERS,
        RESPONSE_TRAILERS: processing_response.CONTINUE_RESPONSE_TRAILERS,
    }
    if adaptive:
        constant[REQUEST_HEADERS] = processing_response.CONTINUE_REQUEST_HEADERS
    decides_at = REQUEST_BODY if adaptive else REQUEST_HEADERS

    def reply(message: bytes) -> bytes:
        kind = message[0]
        if kind == decides_at:
            return processing_response.routed(next(destinations), on_body=adaptive)
        if (found := constant.get(kind)) is not None:
            return found
        # The replies' field numbers are one lower than those of the bodies that come.
        return _echoed(message, kind - 8)

    return reply


def _echoed(message: bytes, tag: int) -> bytes:
    """Return the reply that gives back the body in ``message``, which begins with its HttpBody."""
    size, start = message[1], 2
    if size >= _MORE:
        size, start = _varint(message, 1)
    return _before(tag, size) + message[start : start + size]


# Chunks come in few lengths; beside two slices nothing is left to do for each of them.
@lru_cache(maxsize=4096)
def _before(tag: int, size: int) -> bytes:
    """Return the heads down to the StreamedBodyResponse, around ``size`` bytes."""
    # ProcessingResponse.*_body > response > body_mutation > streamed_response
    before = b""
    for level in (0x1A, 0x1A, 0x0A, tag):
        before = bytes((level,)) + _as_varint(len(before) + size) + before
    return before


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, at
        shift += 7


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= _MORE:
        out.append(value & 0x7F | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


class Handler:
    """One stream on the EPP's own transport."""

    __slots__ = ("_reply", "_stream")

    def __init__(self, stream: Stream, reply: Replier) -> None:
        self._stream = stream
        self._reply = reply

    def message(self, data: bytes) -> None:
        self._stream.send(self._reply(data))

    def half_closed(self) -> None:
        self._stream.finish()

    def reset(self) -> None:
        pass

    def writable(self) -> None:
        pass


class RecordingHandler(Handler):
    """Writes the messages of a stream at its end, those of one read as one list.

    The transport passes on all messages of a read in one turn of the loop.
    """

    __slots__ = ("_file", "_is_same_read", "_reads")

    def __init__(self, stream: Stream, reply: Replier, file: Path) -> None:
        super().__init__(stream, reply)
        self._file = file
        self._reads: list[list[str]] = []
        self._is_same_read = False

    def message(self, data: bytes) -> None:
        if not self._is_same_read:
            self._is_same_read = True
            self._reads.append([])
            asyncio.get_running_loop().call_soon(self._read_ended)
        self._reads[-1].append(data.hex())
        super().message(data)

    def half_closed(self) -> None:
        self.reset()
        super().half_closed()

    def reset(self) -> None:
        with self._file.open("a") as file:
            print(json.dumps(self._reads), file=file)
        self._reads = []

    def _read_ended(self) -> None:
        self._is_same_read = False


async def serve(reply: Replier, ready_file: Path, record: Path | None, transport: str) -> None:
    """Serve on one of the EPP's transports."""

    def opened(stream: Stream, _: Mapping[str, str]) -> Handler:
        if record is None:
            return Handler(stream, reply)
        return RecordingHandler(stream, reply, record)

    make = Http2Server if transport == "http2" else GrpcioServer
    server = make({METHOD: opened}, host="127.0.0.1")
    announce(ready_file, {"grpc": await server.start()})
    await asyncio.Event().wait()


async def serve_plain(reply: Replier, ready_file: Path) -> None:
    """Serve on grpc.aio alone."""

    async def process(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            yield reply(message)

    service, _, method = METHOD.strip("/").rpartition("/")
    handler = grpc.stream_stream_rpc_method_handler(process)
    server = aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(ready_file, {"grpc": port})
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", type=Mode, required=True)
    parser.add_argument("--endpoint", action="append", required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--transport", choices=("http2", "grpcio"), default="http2")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--ready-file", type=Path, required=True)
    given = parser.parse_args()
    made = replies(given.mode, cycle(given.endpoint))
    uvloop.run(
        serve_plain(made, given.ready_file)
        if given.plain
        else serve(made, given.ready_file, given.record, given.transport)
    )
