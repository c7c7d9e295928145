"""Inputs built to cost more than their size, for every reader of untrusted bytes."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import zstandard

from epp.ext_proc import processing_request
from epp.ext_proc.header_layouts import MISSES_PER_LESSON
from epp.ext_proc.model_names import ModelNames
from epp.parsing import ParseError, RequestParser
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.scheduling import CycleState, GuardRails, NullObserver
from epp.testing import make_request
from epp_plugins.data_producers.token import Params, TokenProducer
from tools.fuzz.request_bodies import PARSERS, framed
from tools.harness.ext_proc import FULL_DUPLEX, Envoy, Modes
from tools.harness.held import PatientEnvoy
from tools.harness.in_memory import connect
from tools.harness.raw_client import METHOD, Echo, data, headers, message
from tools.harness.request_control import Epp, make_pool
from tools.harness.wires import DirectWire

Work = Callable[[], object]
"""The measured function, prepared beforehand."""
Case = Callable[[int], Work]
"""Makes the work for a size in bytes or steps, approximately."""

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
_tokens = TokenProducer("tokens", Params())


def request(make: Callable[[int], bytes], path: str = TEXT, encoding: str = "") -> Case:
    """Return a case: a body is parsed, its tokens are counted, and its model is rewritten."""

    def case(size: int) -> Work:
        body = make(size)
        given = {":path": path} | ({"content-encoding": encoding} if encoding else {})
        request_parser = RequestParser.of(
            PARSERS, GuardRails(observer=NullObserver(), disable_after=1 << 30)
        )

        def work() -> None:
            with suppress(ParseError):
                read = request_parser.parse("r-1", given, body)
                _tokens.prepare(read.request, CycleState())
                read.rewrite("other")

        return work

    return case


def response(
    make: Callable[[int], bytes], path: str = TEXT, kind: str = "text/event-stream", cut: int = 0
) -> Case:
    """Return a case: a response is read in pieces of ``cut`` bytes, and its model is restored."""

    def case(size: int) -> Work:
        body = make(size)
        step = cut or len(body)
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
        parser = next(each for each in PARSERS if any(map(path.endswith, each.claims)))
        is_lines = "event" in kind

        def work() -> None:
            reader = parser.response_reader(make_request(path=path), {"content-type": kind})
            names = ModelNames("served", "asked", is_event_stream=is_lines)
            assert reader is not None
            for piece in pieces:
                names.feed(piece, is_last=False)
                reader.feed(piece)
            names.flush()
            reader.usage()

        return work

    return case


def stream(modes: Modes, before: Iterable[Callable[[PatientEnvoy], object]], step: bytes) -> Case:
    """Return a case: one message is sent on a stream repeatedly."""

    def case(size: int) -> Work:
        Envoy.wire = _WIRE

        def work() -> None:
            envoy = PatientEnvoy(Epp(make_pool()), modes)
            for each in before:
                each(envoy)
            for _ in range(size):
                envoy.line.message(step)
            envoy.reset()

        return work

    return case


def connection(make: Callable[[int], Iterable[bytes]]) -> Case:
    """Return a case: bytes arrive on a connection whose streams echo every message."""

    def case(size: int) -> Work:
        reads = list(make(size))

        def work() -> None:
            client = connect({METHOD: Echo})
            for read in reads:
                client.protocol.data_received(read)

        return work

    return case


_WIRE = DirectWire()


def _encoded(**phase: Any) -> bytes:
    return pb.ProcessingRequest(**phase).SerializeToString()


def _single(body: bytes) -> Iterator[bytes]:
    return (body[at : at + 1] for at in range(len(body)))


def _in_prompt(text: bytes) -> bytes:
    return b'{"model":"m","prompt":' + text + b"}"


def _messages(*parts: bytes) -> bytes:
    return b'{"model":"m","messages":[' + b",".join(parts) + b"]}"


_PICTURE = (
    b'{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,/9j///////////////////"}}'
)
REQUESTS: dict[str, Case] = {
    "keys": request(
        lambda n: b'{"model":"m",%s"prompt":""}' % b"".join(b'"%d":1,' % k for k in range(n))
    ),
    "the model again and again": request(lambda n: b"{" + b'"model":"m",' * n + b'"prompt":""}'),
    "lists in lists": request(lambda n: _in_prompt(b"[" * n + b"]" * n)),
    "objects in objects": request(lambda n: _in_prompt(b'{"a":' * n + b"1" + b"}" * n)),
    "openings alone": request(lambda n: b"[" * n),
    "escapes": request(lambda n: _in_prompt(b'"' + b"\\u00e9" * n + b'"')),
    "backslashes": request(lambda n: _in_prompt(b'"' + b"\\\\" * n)),
    "a key of escapes": request(lambda n: b'{"model":"m","prompt":"","' + b"\\n" * n + b'":1}'),
    "blanks": request(lambda n: b'{"model"' + b" " * n + b':"m","prompt":""' + b" " * n + b"}"),
    "digits": request(lambda n: _in_prompt(b"[" + b"9" * n + b"]")),
    "token ids": request(lambda n: _in_prompt(b"[" + b"7," * n + b"7]")),
    "lists of token ids": request(lambda n: _in_prompt(b"[" + b"[7]," * n + b"[7]]")),
    "messages": request(lambda n: _messages(*[b'{"role":"user","content":"x_y"}'] * n), CHAT),
    "messages with pictures": request(
        lambda n: _messages(*[b'{"role":"user","content":[' + _PICTURE + b"]}"] * n), CHAT
    ),
    "pictures in a message": request(
        lambda n: _messages(b'{"role":"user","content":[' + b",".join([_PICTURE] * n) + b"]}"), CHAT
    ),
    "messages that look like pictures": request(
        lambda n: _messages(*[b'{"x":"image_url"}', b'"\\"image_url\\""'] * n), CHAT
    ),
    "zeros in gzip": request(lambda n: gzip.compress(bytes(n)), TEXT, "gzip"),
    "members of gzip": request(lambda n: gzip.compress(b"") * n, TEXT, "gzip"),
    "zeros in zstd": request(lambda n: zstandard.compress(bytes(n)), TEXT, "zstd"),
    "frames of zstd": request(lambda n: zstandard.compress(b" ") * n, TEXT, "zstd"),
    "empty frames of zstd": request(lambda n: zstandard.compress(b"") * n, TEXT, "zstd"),
    "skippable frames of zstd": request(lambda n: b"\x50\x2a\x4d\x18" + bytes(4) * n, TEXT, "zstd"),
    "ids of gRPC, one by one": request(lambda n: framed(b"\x12\x02\x10\x07" * n), GENERATE),
    "unknown fields of gRPC": request(lambda n: framed(b"\x12\x00" + b"\x7a\x00" * n), GENERATE),
    "groups in groups of gRPC": request(lambda n: framed(b"\x7b" * n), GENERATE),
}

_USAGE = b'{"usage":{"prompt_tokens":1}}'
BODIES: dict[str, Callable[[int], bytes]] = {
    "usages": lambda n: _USAGE * n,
    "usages in usages": lambda n: b'{"usage":' * n,
    "usages cut off": lambda n: b'"usage":{"' * n,
    "a usage of braces": lambda n: b'"usage":' + b"{" * n,
    "usages of braces": lambda n: (b'"usage":' + b"{" * 8000) * (1 + n // 8000),
    "a usage of escapes": lambda n: b'"usage":{"' + b"\\n" * n,
    "keys alone": lambda n: b'"usage"' * n,
    "blanks after the key": lambda n: b'"usage"' + b" " * n + b":" + b" " * n + b"{",
    "a line without an end": lambda n: b'data: {"model"' + b'"model"' * n,
    "lines": lambda n: b'data: {"model":"served"}\n' * n,
    "blank lines": lambda n: b"\n" * n,
    "openings": lambda n: b'{"x":' + b"[" * n + b'"model"',
    "openings and closings": lambda n: b'{"x":' + b"[" * n + b"]" * n + b',"model":"served"}\n',
    "closings": lambda n: b'"model"' + b"]" * n + b"\n",
    "strings": lambda n: b'{"x":[' + b'"a" ' * n + b'"model"',
    "quotation marks": lambda n: b'"' * n + b'"model"\n',
    "meta_info": lambda n: b'{"meta_info":{"finish_reason":1}}' * n,
    "a long meta_info": lambda n: b'"meta_info":' + b"[" * n,
    "a message of gRPC": lambda n: framed(b"\x12" + bytes(n)),
    "messages of gRPC": lambda n: framed(b"x") * n,
    "empty messages of gRPC": lambda n: bytes(5) * n,
}
RESPONSES: dict[str, Case] = {
    f"{name}, {path.rpartition('/')[2]}, {'in one' if not cut else f'by {cut}'}": response(
        make, path, kind, cut
    )
    for name, make in BODIES.items()
    for path, kind in (
        *((path, "text/event-stream") for path in ("/v1/messages", "/generate")),
        (GENERATE, "application/json"),
    )
    for cut in (0, 1, 100)
}

STREAMS: dict[str, Case] = {
    "chunks of a request": stream(
        FULL_DUPLEX, [Envoy.request_headers], _encoded(request_body=pb.HttpBody(body=b"x"))
    ),
    "empty chunks of a request": stream(
        FULL_DUPLEX, [Envoy.request_headers], _encoded(request_body=pb.HttpBody())
    ),
    "trailers while it is decided": stream(
        FULL_DUPLEX,
        [Envoy.request_headers, Envoy.request_body],
        _encoded(request_trailers=pb.HttpTrailers()),
    ),
    "chunks of a response": stream(
        FULL_DUPLEX,
        [
            Envoy.request_headers,
            Envoy.request_body,
            PatientEnvoy.decide,
            Envoy.response_headers,
        ],
        _encoded(response_body=pb.HttpBody(body=b"x" * 100)),
    ),
}


_heads = count()


def _headers_messages(size: int) -> Work:
    # The decoder learns one in this many unknown heads, so each run contains one lesson. The names
    # differ from those of all other runs.
    messages = [_headers_message(size, next(_heads)) for _ in range(MISSES_PER_LESSON)]

    def work() -> None:
        for each in messages:
            processing_request.decode(each)

    return work


def _headers_message(size: int, head: int) -> bytes:
    headers = [pb.HeaderValue(key=f"{head}-{k}", raw_value=b"y") for k in range(size)]
    return _encoded(request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers)))


STREAMS["headers"] = _headers_messages

CONNECTIONS: dict[str, Case] = {
    "a message in frames of a byte": connection(
        lambda n: [headers(1), b"".join(data(1, each) for each in _single(message(bytes(n))))]
    ),
    "a message in reads of a byte": connection(
        lambda n: [headers(1), *_single(data(1, message(bytes(n % 16_000))))]
    ),
    "messages in a read": connection(lambda n: [headers(1) + data(1, message(b"") * n)]),
    "streams": connection(
        lambda n: [headers(k) + data(k, message(b"x"), end=True) for k in range(1, 2 * n, 2)]
    ),
}
CASES: dict[str, Case] = {
    **{f"request: {name}": case for name, case in REQUESTS.items()},
    **{f"response: {name}": case for name, case in RESPONSES.items()},
    **{f"stream: {name}": case for name, case in STREAMS.items()},
    **{f"connection: {name}": case for name, case in CONNECTIONS.items()},
}
