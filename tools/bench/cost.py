"""Worst-case cost of a request by step, on bodies built to be expensive and on normal ones.

Each body of :data:`tools.fuzz.cost_cases.REQUESTS` is read, counted, hashed, scheduled and
rewritten, at several sizes; headers, responses and log lines are as long as a client can make them.
For each step the table shows the costliest input: per KiB, of small requests, and of all accepted
requests.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from rich.table import Table

from epp.ext_proc import processing_request
from epp.ext_proc.model_names import ModelNames
from epp.parsing import ParsedRequest, ParseError
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import DataProducer, EndCause
from epp.scheduling import CycleState, LLMRequest, PostSchedule
from epp_plugins.data_producers.media_parts import HAS_MEDIA
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.parsers.usage import OpenAiResponse
from tools.bench.in_process import silenced
from tools.fuzz.cost_cases import HEADERS, MAX_HEADER_BYTES, REQUESTS, Dense
from tools.fuzz.cost_pipelines import Picker
from tools.fuzz.growth_cases import BODIES

KIB, MIB = 1 << 10, 1 << 20
SMALL = 64 * KIB
SIZES = (SMALL, MIB)
LONG_SIZES = (8 * MIB, 64 * MIB)
"""Measured once, with the default configuration: they take minutes."""
HONEST = {
    size: Dense(
        "/v1/chat/completions",
        b'{"model":"m","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"',
        b"Hello, this is a text. ",
        b'"}]}',
    ).body(size)
    for size in (500, 16_000, 400_000, 12_000_000)
}
"""Cases by their length in bytes."""
BOUNDS: Mapping[str, str] = {
    "headers": "--max-header-bytes, and Envoy's 60 KiB",
    "parse": "--max-body-bytes, --max-json-values",
    "parse gRPC": "messages of 4 MiB, 1048576 token ids",
    "token estimate": "1048576 token ids; text is not walked",
    "media": "8192 elements, 256 media, 2000 segments of JPEGs, 262144 values",
    "prefix hashing": "maxPrefixTokensToMatch, 131072",
    "scheduling": "the pool; headers are looked at in part",
    "prefix index": "maxPrefixTokensToMatch, 4096 evictions",
    "rewrite": "1000 fields, keys of 4096 bytes",
    "log and metrics": "a model of 4096 bytes",
    "usage of a response": "objects of 8 KiB",
    "model of a response": "64 KiB and 4000 tokens of a document",
}
"""The object that performs each step, in order."""

_RESPONSE_PIECE_BYTES = 16 * KIB
_WITHOUT_BODY = b'{"model":"%b","prompt":"a"}'


@dataclass(slots=True)
class Worst:
    """The costliest inputs of one step."""

    step: str
    us_per_kib: float = 0.0
    """For inputs of 64 KiB and more; smaller ones show the fixed cost."""
    per_kib_by: str = ""
    small_ms: float = 0.0
    """Maximum for inputs of up to 64 KiB."""
    most_ms: float = 0.0
    """Maximum for all accepted inputs."""
    most_by: str = ""
    honest_us: dict[int, float] = field(default_factory=dict)
    """Cost of honest requests by the bytes of their body."""

    def add(self, name: str, size: int, seconds: float) -> None:
        """Take note of an input."""
        per_kib = seconds * 1e6 / (size / KIB)
        if size >= SMALL / 2 and per_kib > self.us_per_kib:
            self.us_per_kib, self.per_kib_by = per_kib, name
        if size <= SMALL + KIB:
            self.small_ms = max(self.small_ms, seconds * 1e3)
        if seconds * 1e3 > self.most_ms:
            self.most_ms, self.most_by = seconds * 1e3, f"{name}, {_shown(size)}"


class Steps:
    """One pipeline, split into steps."""

    def __init__(self, configuration: str, repeats: int) -> None:
        self._picker = Picker(configuration)
        self._repeats = repeats
        self._pipeline = self._picker.director.pipeline
        producers = self._picker.graph.implementing(DataProducer)
        self._tokens = next(each for each in producers if isinstance(each, TokenProducer))
        self._others = [each for each in producers if each is not self._tokens]

    def of_request(self, headers: Mapping[str, str], body: bytes) -> Iterator[tuple[str, float]]:
        """Yield the CPU seconds of each step of a request."""
        read: ParsedRequest | None = None

        def parse() -> None:
            nonlocal read
            with suppress(ParseError):
                read = self._pipeline.request_parser.parse("r", headers, body, may_lack_model=True)

        is_grpc = "Engine" in headers[":path"] or "Prediction" in headers[":path"]
        yield "parse gRPC" if is_grpc else "parse", least_seconds(parse, self._repeats)
        if read is None:
            return
        request = read.request
        is_media = request.prompt.startswith(b"[") and HAS_MEDIA(request.prompt) is not None
        prepare = self._tokens.prepare
        counted = least_seconds(lambda: prepare(request, CycleState()), self._repeats)
        yield "media" if is_media else "token estimate", counted
        yield "prefix hashing", min(self._hashed(request)[0] for _ in range(self._repeats))
        _, state = self._hashed(request)
        pool, scheduler = self._picker.endpoints, self._pipeline.scheduler
        result = scheduler.schedule(request, pool, state)
        hooks = self._picker.graph.implementing(PostSchedule)
        entered = _seconds(lambda: [each.post_schedule(request, result, state) for each in hooks])
        yield "prefix index", entered
        taken = least_seconds(lambda: scheduler.schedule(request, pool, state), self._repeats)
        yield "scheduling", taken
        yield "rewrite", least_seconds(lambda: _rewritten(read), self._repeats)

    def end(self, headers: Mapping[str, str], body: bytes) -> float:
        """Return the CPU seconds of what comes after the decision: hooks, metrics, the log."""
        exchange = self._picker.request(headers, body)
        if exchange is None:
            return 0.0
        exchange.response_started(200)
        return _seconds(lambda: exchange.close(EndCause.COMPLETED))

    def _hashed(self, request: LLMRequest) -> tuple[float, CycleState]:
        """Return the CPU seconds of all producers but the first, and what they have written."""
        state = CycleState()
        self._tokens.prepare(request, state)
        began = time.thread_time()
        for producer in self._others:
            producer.prepare(request, state)
        for producer in (self._tokens, *self._others):
            producer.attach(request, self._picker.endpoints, state)
        return time.thread_time() - began, state


def measure(*, quick: bool) -> list[Worst]:
    """Return the costliest inputs of each step, in the order of BOUNDS."""
    with silenced("info"):
        found = {step: Worst(step) for step in BOUNDS}
        repeats = 2 if quick else 5
        for configuration in ("default", "everything"):
            steps = Steps(configuration, repeats)
            for size in SIZES:
                _add_requests(found, steps, size)
            _add_headers(found, steps)
        for size in () if quick else LONG_SIZES:
            _add_requests(found, Steps("default", 1), size)
        _add_responses(found, repeats)
        steps = Steps("default", 30)
        for size, body in HONEST.items():
            for step, seconds in steps.of_request({":path": "/v1/chat/completions"}, body):
                found[step].honest_us[size] = seconds * 1e6
    return list(found.values())


def _add_requests(found: Mapping[str, Worst], steps: Steps, size: int) -> None:
    for name, case in REQUESTS.items():
        body = case.body(size)
        for step, seconds in steps.of_request({":path": case.path}, body):
            found[step].add(name, len(body), seconds)


def _add_headers(found: Mapping[str, Worst], steps: Steps) -> None:
    for name, (before, unit, after) in HEADERS.items():
        value = (before + unit * MAX_HEADER_BYTES)[:MAX_HEADER_BYTES] + after
        headers = {":path": "/v1/completions", name: value.decode()}
        for step, seconds in steps.of_request(headers, _WITHOUT_BODY % b"m"):
            found[step].add(f"header {name}", len(value), seconds)
        found["log and metrics"].add(name, len(value), steps.end(headers, _WITHOUT_BODY % b"m"))
    model = b"\\u0001" * 600
    headers = {":path": "/v1/completions"}
    found["log and metrics"].add("model", len(model), steps.end(headers, _WITHOUT_BODY % model))
    pairs = [pb.HeaderValue(key="a", raw_value=b"b")] * (MAX_HEADER_BYTES // 8)
    message = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=pairs))
    ).SerializeToString()
    seconds = least_seconds(lambda: processing_request.decode(message), 5)
    found["headers"].add("many headers", len(message), seconds)


def _add_responses(found: Mapping[str, Worst], repeats: int) -> None:
    for name, made in BODIES.items():
        body = made(1 + SMALL // max(1, len(made(2)) - len(made(1))))[:SMALL]
        pieces = [
            body[at : at + _RESPONSE_PIECE_BYTES] for at in range(0, SMALL, _RESPONSE_PIECE_BYTES)
        ]
        used = least_seconds(partial(_used, pieces), repeats)
        found["usage of a response"].add(name, len(body), used)
        for kind in (True, False):
            work = partial(_named, pieces, is_event_stream=kind)
            named = least_seconds(work, repeats)
            found["model of a response"].add(name, len(body), named)


def _used(pieces: Sequence[bytes]) -> None:
    reader = OpenAiResponse()
    for piece in pieces:
        reader.feed(piece)
    reader.usage()


def _named(pieces: Sequence[bytes], *, is_event_stream: bool) -> None:
    names = ModelNames("served", "asked", is_event_stream=is_event_stream)
    for piece in pieces:
        names.feed(piece, is_last=False)
    names.flush()


def _rewritten(read: ParsedRequest) -> None:
    with suppress(ParseError):
        read.rewrite("other")


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def least_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least CPU time of ``work``."""
    return min(_seconds(work) for _ in range(repeats))


def table(measured: Sequence[Worst]) -> Table:
    """Return a row for each step."""
    shown = Table(
        title="Cost at worst, by step (CPU of the loop)", title_justify="left", show_lines=False
    )
    shown.add_column("step")
    for column in ("µs/KiB", "ms, ≤ 64 KiB", "ms at most"):
        shown.add_column(column, justify="right")
    shown.add_column("by (per KiB; at most)")
    shown.add_column("bound")
    for size in HONEST:
        shown.add_column(f"honest {_shown(size)}, µs", justify="right")
    for each in measured:
        shown.add_row(
            each.step,
            f"{each.us_per_kib:.1f}",
            f"{each.small_ms:.2f}",
            f"{each.most_ms:.1f}",
            f"{each.per_kib_by}; {each.most_by}",
            BOUNDS[each.step],
            *(f"{each.honest_us[size]:.0f}" if size in each.honest_us else "" for size in HONEST),
        )
    return shown


def _shown(size: int) -> str:
    if size < 10 * KIB:
        return f"{size} B"
    return f"{size / KIB:.0f} KiB" if size < MIB else f"{size / MIB:.0f} MiB"
