"""An ext_proc server that decides nothing: the floor under the EPP's cost on the same transport.

It answers each message by its first byte, with bytes made beforehand; bodies go back as they came,
as HttpBody and StreamedBodyResponse have the same fields 1 and 2. With ``--plain`` the handler runs
on grpc.aio without the EPP's adapter. With ``--record FILE`` the messages of the first stream are
kept, for the benchmarks in the process.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import uvloop
from bench.processes import announce
from grpc import aio

from epp.ext_proc import METHOD, messages
from epp.lab.envoy import Mode
from epp.transport import GrpcioServer
from epp.transport.interface import Stream

# Tags of ProcessingRequest.request: field number * 8 + 2.
REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY = 0x12, 0x1A, 0x22, 0x2A
REQUEST_TRAILERS, RESPONSE_TRAILERS = 0x32, 0x3A

Answers = Callable[[bytes], bytes]


def answers(mode: Mode, destinations: Iterator[str]) -> Answers:
    """Return the function from a message to its answer."""
    adaptive = mode is Mode.ADAPTIVE
    constant = {
        REQUEST_TRAILERS: messages.CONTINUE_REQUEST_TRAILERS,
        RESPONSE_HEADERS: messages.CONTINUE_RESPONSE_HEADERS,
        RESPONSE_TRAILERS: messages.CONTINUE_RESPONSE_TRAILERS,
    }
    if adaptive:
        constant[REQUEST_HEADERS] = messages.CONTINUE_REQUEST_HEADERS
    decides_at = REQUEST_BODY if adaptive else REQUEST_HEADERS

    def answer(message: bytes) -> bytes:
        kind = message[0]
        if kind == decides_at:
            return messages.routed(next(destinations), on_body=adaptive)
        if (found := constant.get(kind)) is not None:
            return found
        return _echoed(message, b"\x1a" if kind == REQUEST_BODY else b"\x22")

    return answer


def _echoed(message: bytes, tag: bytes) -> bytes:
    size, start = _varint(message, 1)
    # ProcessingResponse.*_body > response > body_mutation > streamed_response
    wrapped = message[start : start + size]
    for level in (b"\x1a", b"\x1a", b"\x0a", tag):
        wrapped = level + _as_varint(len(wrapped)) + wrapped
    return wrapped


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Handler:
    """One stream on the EPP's own transport."""

    __slots__ = ("_answer", "_stream")

    def __init__(self, stream: Stream, answer: Answers) -> None:
        self._stream = stream
        self._answer = answer

    def message(self, data: bytes) -> None:
        self._stream.send(self._answer(data))

    def half_closed(self) -> None:
        self._stream.finish()

    def reset(self) -> None:
        pass

    def writable(self) -> None:
        pass


class RecordingHandler(Handler):
    """Keeps what comes and writes it down at the end, if it is the first stream."""

    __slots__ = ("_file", "_messages")

    def __init__(self, stream: Stream, answer: Answers, file: Path) -> None:
        super().__init__(stream, answer)
        self._file = file
        self._messages: list[str] = []

    def message(self, data: bytes) -> None:
        self._messages.append(data.hex())
        super().message(data)

    def half_closed(self) -> None:
        self.reset()
        super().half_closed()

    def reset(self) -> None:
        if not self._file.exists():
            self._file.write_text(json.dumps(self._messages))


async def serve(answer: Answers, ready_file: Path, record: Path | None) -> None:
    """Serve on the EPP's transport."""

    def opened(stream: Stream, _: Mapping[str, str]) -> Handler:
        if record is None:
            return Handler(stream, answer)
        return RecordingHandler(stream, answer, record)

    server = GrpcioServer({METHOD: opened}, host="127.0.0.1")
    announce(ready_file, {"grpc": await server.start()})
    await asyncio.Event().wait()


async def serve_plain(answer: Answers, ready_file: Path) -> None:
    """Serve on grpc.aio alone."""

    async def process(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            yield answer(message)

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
    parser.add_argument("--record", type=Path)
    parser.add_argument("--ready-file", type=Path, required=True)
    given = parser.parse_args()
    made = answers(given.mode, cycle(given.endpoint))
    uvloop.run(
        serve_plain(made, given.ready_file)
        if given.plain
        else serve(made, given.ready_file, given.record)
    )
