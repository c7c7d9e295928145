"""Model servers' responses: the response phase of the reference's hermetic and server tests.

The reference's tests send a response without a request before it, which no Envoy does; here a
request goes first, and what is said of it is not looked at.
"""

from parity.case import Case, Series
from parity.envoy import Step
from parity.fixture import (
    CONFIG,
    OBJECTS,
    REQUEST_ID,
    Facts,
    answered,
    completion,
    merged,
    pod,
    raw,
    response,
)
from parity.worlds import World

MODEL = "sql-lora-sheddable"
WORLD = World((pod(0, 4, 0.2, "sql-lora-1fdg3"),), CONFIG, OBJECTS)
REQUEST = raw({"x-request-id": REQUEST_ID}, completion("test6", MODEL))
STREAM = raw({"x-request-id": REQUEST_ID}, completion("test6", MODEL)[:-1] + b',"stream":true}')
JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}

USAGE = (
    b'data: {"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}\ndata: [DONE]'
)
EVENTS = (b"data: {}", USAGE, b"")
WHOLE = completion("test6", MODEL)
HALVES = (WHOLE[:34], WHOLE[34:])

INPUT_TOKENS = tuple(
    Series(f"request_input_tokens_{part}", (("model_name", MODEL),)) for part in ("count", "sum")
)
TOKENS: Facts = (
    {"metrics": {"request_input_tokens_count": 1.0, "request_input_tokens_sum": 7.0}},
    {},
)


def _response(
    name: str,
    headers: dict[str, str],
    *chunks: bytes,
    request: tuple[Step, ...] = REQUEST,
    is_streamed: bool = False,
    counts_tokens: bool = False,
    also: tuple[str, ...] = (),
) -> Case:
    facts = answered(headers, *chunks, is_streamed=is_streamed)
    reference, ours = merged(facts, TOKENS) if counts_tokens else facts
    return Case(
        name=name,
        also=also,
        world=WORLD,
        steps=request + response(headers, *chunks),
        series=INPUT_TOKENS if counts_tokens else (),
        reference=reference,
        ours=ours,
    )


def _with_trailers(
    name: str,
    headers: dict[str, str],
    *chunks: bytes,
    request: tuple[Step, ...] = REQUEST,
    is_streamed: bool = False,
) -> Case:
    reference, ours = answered_with_trailers(headers, *chunks, is_streamed=is_streamed)
    return Case(
        name=name,
        world=WORLD,
        steps=request + response(headers, *chunks, trailers={"x-end": "1"}),
        reference=reference,
        ours=ours,
    )


def answered_with_trailers(headers: dict[str, str], *chunks: bytes, is_streamed: bool) -> Facts:
    """Return what comes of a response that ends with trailers: no piece of its body is the last."""
    reference, ours = answered(headers, *chunks, is_streamed=is_streamed)
    pieces = tuple((each, False) for each in chunks)
    reference["response_trailers"] = True
    reference["response_pieces"] = pieces if is_streamed else ((b"".join(chunks), False),)
    if (held := ours.get("response_pieces")) is not None:
        ours["response_pieces"] = type(held)(pieces, held.row)
    return reference, ours


RESPONSES = (
    _response(
        "http: response, multi-chunk JSON",
        JSON,
        *HALVES,
        also=("message: JSON in chunks",),
    ),
    _response(
        "http: response, invalid JSON",
        JSON,
        b"no healthy upstream",
        also=("message: non-JSON response",),
    ),
    _response("http: response, empty chunk at the end", JSON, WHOLE, b""),
    _response(
        "http: response streaming",
        SSE,
        *EVENTS,
        is_streamed=True,
        counts_tokens=True,
        also=("message: SSE usage",),
    ),
    _response(
        "server: streaming by the request, no trailers",
        SSE,
        *EVENTS,
        request=STREAM,
        is_streamed=True,
    ),
    _response("server: streaming by the response, no trailers", SSE, *EVENTS, is_streamed=True),
    _response("server: not streaming, no trailers", JSON, *HALVES),
    _with_trailers(
        "server: streaming by the request, trailers",
        SSE,
        *EVENTS[:2],
        request=STREAM,
        is_streamed=True,
    ),
    _with_trailers(
        "server: streaming by the response, trailers", SSE, *EVENTS[:2], is_streamed=True
    ),
    _with_trailers("server: not streaming, trailers", JSON, *HALVES),
)
