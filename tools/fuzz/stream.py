"""Fuzz target: the state machine of an ext_proc stream, with messages in any order.

The first bytes choose the configuration of Envoy and the endpoint picker and a plugin's change of
the request; the others choose messages (good, odd or broken), decisions and ends between them.
:mod:`tools.harness.judge` checks that each reply is legal and that everything is released.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from epp.ext_proc import ExtProcSettings
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import EndCause
from tools.fuzz.json_text import JsonText
from tools.fuzz.tape import Tape
from tools.harness.ext_proc import DESTINATION, Envoy, Modes, http_headers
from tools.harness.held import DecidedAtOnce, HeldDecision
from tools.harness.judge import (
    ALL_MODES,
    CHANGES,
    UNKNOWN_MODE,
    JudgingEnvoy,
    Step,
    reply_legally_and_release,
)
from tools.harness.request_control import BODY
from tools.harness.wires import DirectWire

MAX_STEPS = 40
_MODES = (*ALL_MODES, UNKNOWN_MODE)
_SETTINGS = (
    ExtProcSettings(),
    ExtProcSettings(sample_usage=1.0, error_body="text", destination_list=False),
    ExtProcSettings(max_body_bytes=100, max_header_bytes=400, retry_after_seconds=0),
)
_FAILS_IN = (frozenset[str](), frozenset({"pre_request"}), frozenset({"response_complete"}))
_KINDS = (HeldDecision, None, DecidedAtOnce)
_LASTS = ("reset", "half_close", "drain")
_NAMES = (
    *(":path", ":method", ":status", "x-request-id", "content-length", "content-type"),
    *("content-encoding", "x-gateway-model-name", "x-llm-d-inference-objective", DESTINATION),
    *("x-llm-d-slo-ttft-ms", "X-Upper", ""),
)
_VALUES = (
    *("/v1/completions", "/v1/chat/completions", "/upload", "POST", "200", "503", "r-1", "12"),
    *("application/json", "text/event-stream", "gzip", "9" * 5000, "²", "x" * 300, ""),
)
_SERVED = ("10.0.0.1:8000", "10.0.0.2:8000", "nowhere", "")
_SIZES = (0, 1, 62_001, 130_000)
_SUBSETS: tuple[Any, ...] = (
    None,
    [],
    ["10.0.0.2"],
    "10.0.0.1:8000, ",
    ["nowhere"],
    7,
    {"a": 1},
    "\n",
)
WORDS = (
    BODY,
    b'"model"',
    b"\x12\x00",
    *(bytes((number << 3 | 2, 0)) for number in range(2, 12)),
)
"""Dictionary of the fuzzer, including beginnings of messages."""


class _Steps:
    """Reads steps off a tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._text = JsonText(tape)

    def step(self) -> Step:
        """Return the next one."""
        return self._tape.choice(_MAKERS)(self)

    def plain_message(self) -> Step:
        """Return a message as Envoy sends it."""
        return self._tape.choice(_PLAIN)

    def odd_message(self) -> Step:
        """Return a message of any kind, with any values that its fields can hold."""
        request = self._request()
        return lambda envoy: envoy.send(request)

    def broken_message(self) -> Step:
        """Return a message with bytes changed, truncated, appended or inserted."""
        tape, data = self._tape, self._request().SerializeToString()
        at = tape.number(len(data) + 1)
        how = tape.number(5)
        if how == 0:
            data = data[:at]
        elif how == 1:
            data = data[:at] + tape.take(1 + tape.number(8)) + data[at:]
        elif how == 2:
            data = data[:at] + tape.take(1) + data[at + 1 :]
        elif how == 3:
            data += self._request().SerializeToString()
        else:
            data = tape.take(1 + tape.number(60))
        return lambda envoy: envoy.garble(data)

    def decision(self) -> Step:
        """Return a step that makes the decision if the stream waits for one."""
        return JudgingEnvoy.decide_if_asked

    def end(self) -> Step:
        """Return an end of the stream, or another event of the transport."""
        return self._tape.choice(_ENDS)

    def _request(self) -> pb.ProcessingRequest:
        tape, request = self._tape, pb.ProcessingRequest()
        kind = tape.number(8)
        side = tape.choice(("request", "response"))
        if kind <= 1:
            headers = {tape.choice(_NAMES): tape.choice(_VALUES) for _ in range(tape.number(6))}
            getattr(request, f"{side}_headers").CopyFrom(http_headers(headers, tape.flip()))
        elif kind <= 4:
            body = getattr(request, f"{side}_body")
            body.body, body.end_of_stream = self._chunk(), tape.flip()
            body.end_of_stream_without_message = tape.flip(8)
        elif kind == 5:
            getattr(request, f"{side}_trailers").SetInParent()
        request.observability_mode = tape.flip(20)
        if tape.flip(6):
            self._put_beside(request)
        return request

    def _chunk(self) -> bytes:
        tape = self._tape
        kind = tape.number(5)
        if kind == 0:
            return BODY
        if kind == 1:
            return self._text.object(0, ("model", b'"llama"'), ("prompt", b'"x"'))
        if kind == 2:
            return b"data: " + self._text.object(0, ("model", b'"nick"')) + b"\n\n"
        return tape.take(tape.number(40)) if kind == 3 else bytes(tape.choice(_SIZES))

    def _put_beside(self, request: pb.ProcessingRequest) -> None:
        tape = self._tape
        if tape.flip():
            config = request.protocol_config
            config.SetInParent()
            config.request_body_mode = tape.choice(_MODES)
            config.response_body_mode = tape.choice(_MODES)
        metadata = request.metadata_context.filter_metadata
        if tape.flip():
            metadata["envoy.lb"].update({f"{DESTINATION}-served": tape.choice(_SERVED)})
        metadata["envoy.lb.subset_hint"].update({f"{DESTINATION}-subset": tape.choice(_SUBSETS)})


_PLAIN: tuple[Step, ...] = (
    Envoy.request_headers,
    partial(Envoy.request_headers, end=True),
    Envoy.request_body,
    partial(Envoy.request_body, end=False),
    partial(Envoy.request_body, body=b"", end=True),
    Envoy.request_trailers,
    Envoy.response_headers,
    partial(Envoy.response_headers, headers={"content-type": "text/event-stream"}),
    partial(Envoy.response_headers, headers={"content-type": "application/json"}, end=True),
    Envoy.response_body,
    partial(Envoy.response_body, end=True),
    partial(Envoy.response_body, body=b'{"model":"llama","usage":{"prompt_tokens":1}}'),
    Envoy.response_trailers,
)
_GOOD = (0, 2, 7, 9, 9, 10)
"""Indices of plain messages: a request and its reply, in order."""
_ENDS: tuple[Step, ...] = (
    Envoy.writable,
    Envoy.reset,
    Envoy.half_close,
    Envoy.drain,
    lambda envoy: envoy.close(EndCause.ERROR),
)
_MAKERS: tuple[Callable[[_Steps], Step], ...] = (
    _Steps.plain_message,
    _Steps.plain_message,
    _Steps.plain_message,
    _Steps.odd_message,
    _Steps.odd_message,
    _Steps.decision,
    _Steps.broken_message,
    _Steps.end,
)
_DECISION = _MAKERS.index(_Steps.decision)


def one_input(data: bytes) -> JudgingEnvoy:
    """Run one input; any exception is a finding."""
    Envoy.wire = _WIRE
    tape = Tape(data)
    modes: Modes | None = tape.choice(_MODES), tape.choice(_MODES)
    has_modes, sends_ahead = not tape.flip(8), not tape.flip()
    settings, fails_in = tape.choice(_SETTINGS), tape.choice(_FAILS_IN)
    kind, change, last = tape.choice(_KINDS), tape.choice(CHANGES), tape.choice(_LASTS)
    return reply_legally_and_release(
        modes=modes if has_modes else None,
        sends_ahead=sends_ahead,
        settings=settings,
        steps=_read_off(tape),
        fails_in=fails_in,
        kind=kind,
        change=change,
        last=last,
    )


def _read_off(tape: Tape) -> Iterator[Step]:
    steps = _Steps(tape)
    for _ in range(MAX_STEPS):
        if tape.is_used_up:
            return
        yield steps.step()


_WIRE = DirectWire()


def good_inputs() -> Iterator[bytes]:
    """Yield well-formed streams, in every pair of modes, with every change."""
    numbers = range(len(_MODES) - 1)
    for request, response, change in product(numbers, numbers, range(len(CHANGES))):
        head = bytes((request, response, 0, 0, 0, 0, 0, change, 0))
        steps: list[tuple[int, ...]] = [(0, message) for message in _GOOD]
        steps.insert(2, (_DECISION,))
        yield head + b"".join(map(bytes, steps))


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Yield inputs that begin like good ones and continue at random, and random ones."""
    chooser = random.Random(seed)
    good = list(good_inputs())
    for _ in range(count):
        start = chooser.choice(good)
        start = start[: chooser.randrange(len(start) + 1)]
        yield start + chooser.randbytes(chooser.choice((5, 20, 60, 200)))
