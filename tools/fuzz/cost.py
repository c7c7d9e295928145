"""Checks that no body of 64 KB costs more than a bounded time and memory.

``make fuzz TARGET=cost`` searches for one that does, guided by cost instead of coverage: it mutates
the costliest inputs. The code is not instrumented, which would take most of the time.

An input is a tape of decisions: one of :data:`~tools.fuzz.cost_cases.REQUESTS` or a response, with
another unit, other ends or another path, headers as long as Envoy lets them pass, and the default
configuration or one with nearly all plugins. A step is the work of the event loop for one message
of Envoy: the request, or a piece of the response.
"""

import argparse
import hashlib
import random
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from gc import collect
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from tools.fuzz import request_bodies
from tools.fuzz.cost_cases import (
    GENERATE,
    HEADERS,
    MAX_HEADER_BYTES,
    REQUESTS,
    envelope,
    packed_ids,
)
from tools.fuzz.cost_pipelines import CONFIGURATIONS, picker
from tools.fuzz.growth import quiet
from tools.fuzz.growth_cases import BODIES, Work
from tools.fuzz.json_text import WORDS
from tools.fuzz.request_bodies import framed
from tools.fuzz.tape import Tape

MAX_BODY_BYTES = 65_536
MAX_SECONDS = 0.020
"""Maximum CPU time of a step on the loop."""
MAX_PEAK_BYTES = 70 << 20
MAX_CALLS = 60_000
"""Maximum number of function calls of a step; the test suite counts calls instead of time."""
RESULTS = Path("fuzz-results") / "cost"

_AGAIN = 3
"""Number of reruns of an input that took too long; the least time counts."""
_GROWTH_KIB = 4096
"""Growth of the process after which an input is run again with its memory traced."""
_KEPT = 60
"""Number of costliest inputs that are kept of each kind."""
_SHARE_OF_RESPONSES = 0.3
_SHARE_OF_NEW = 0.3
_TAPE_BYTES = 120
_PATHS = (*request_bodies.PATHS, *(each.path for each in REQUESTS.values()))
_FRAGMENTS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"0", b'""', b"{}", b"[]", b"null", b"\\u0000"),
    *(b'"":', b"\\\\", b"\\ud800", b"9" * 300, b"1e308", b"0." + b"0" * 300, b" ", b"\n", b"\xff"),
    *(f'"{word}"'.encode() for word in WORDS),
    *(f'"{word}":'.encode() for word in WORDS),
    *(each.unit for each in REQUESTS.values()),
    *(each.before for each in REQUESTS.values()),
    *(each.after for each in REQUESTS.values()),
    *(b"data: ", b"\n\n", b"\x12", b"\x1a\x00", b"\x7a", "\U0001f600".encode(), b"\xed\xa0\x80"),
)
_KINDS = ("application/json", "text/event-stream", "application/grpc")
_ANSWERED = (
    ("/v1/completions", b'{"model":"m","prompt":""}'),
    ("/v1/messages", b'{"model":"m","messages":[]}'),
    ("/generate", b'{"text":"a"}'),
    (GENERATE, framed(b"\x12\x02\x10\x07")),
)
_WRAPPERS: tuple[Callable[[bytes], bytes], ...] = (
    bytes,
    bytes,
    bytes,
    framed,
    packed_ids,
    envelope,
)


class CostError(AssertionError):
    """An input costs too much."""


@dataclass(frozen=True, slots=True)
class Call:
    """Input of one pipeline."""

    configuration: str
    headers: dict[str, str]
    body: bytes
    response: tuple[bytes, ...] = ()
    kind: str = ""

    def steps(self) -> Iterator[None]:
        """Decide the request and read its response; yield after each message."""
        return picker(self.configuration).steps(self.headers, self.body, self.response, self.kind)

    def run(self) -> None:
        """Run all steps."""
        for _ in self.steps():
            pass


def call(data: bytes) -> Call:
    """Return the call that a tape describes."""
    tape = Tape(data)
    configuration = tape.choice(tuple(CONFIGURATIONS))
    if tape.flip(4):
        path, body = tape.choice(_ANSWERED)
        kind = tape.choice(_KINDS)
        pieces = _pieces(tape, _response(tape))
        return Call(configuration, _headers(tape, path), body, pieces, kind)
    path, body = _request(tape)
    return Call(configuration, _headers(tape, path), body[:MAX_BODY_BYTES])


def _request(tape: Tape) -> tuple[str, bytes]:
    case = tape.choice(tuple(REQUESTS.values()))
    if tape.flip(3):
        return case.path, case.body(MAX_BODY_BYTES - 64)
    path = tape.choice(_PATHS) if tape.flip(4) else case.path
    unit = _unit(tape) if tape.flip() else case.unit + _unit(tape)
    before = case.before + (_unit(tape) if tape.flip(4) else b"")
    after = (_unit(tape) if tape.flip(4) else b"") + case.after
    body = _filled(before, unit, after, MAX_BODY_BYTES - 64)
    wrapped = tape.choice(_WRAPPERS) if tape.flip(8) else case.wrapped
    return path, wrapped(body)


def _response(tape: Tape) -> bytes:
    made = tape.choice(tuple(BODIES.values()))
    body = made(1 + MAX_BODY_BYTES // max(1, len(made(2)) - len(made(1))))
    if tape.flip():
        return body[:MAX_BODY_BYTES]
    return _filled(made(1), _unit(tape), _unit(tape), MAX_BODY_BYTES)


def _pieces(tape: Tape, body: bytes) -> tuple[bytes, ...]:
    # Envoy forwards the bytes of each read, mostly a frame of HTTP/2 or of TLS.
    step = tape.choice((16_384, 16_384, 4096, 1000))
    return tuple(body[at : at + step] for at in range(0, len(body), step))


def _unit(tape: Tape) -> bytes:
    parts = []
    for _ in range(1 + tape.number(4)):
        part = tape.take(1 + tape.number(8)) if tape.flip(6) else tape.choice(_FRAGMENTS)
        parts.append(part * (1 if tape.flip() else 1 + tape.number(40)))
    return b"".join(parts)[:8192] or b"0"


def _filled(before: bytes, unit: bytes, after: bytes, size: int) -> bytes:
    room = size - len(before) - len(after)
    return b"".join((before, unit * max(1, room // len(unit)), after))[:size]


def _headers(tape: Tape, path: str) -> dict[str, str]:
    headers = (
        {":path": path, "x-llm-d-model-name-rewrite": "other"} if tape.flip(3) else {":path": path}
    )
    if tape.flip(3):
        name = tape.choice(tuple(HEADERS))
        before, unit, after = HEADERS[name]
        unit = _unit(tape) if tape.flip() else unit
        value = _filled(before, unit, after, MAX_HEADER_BYTES)
        headers[name] = value.decode("latin-1")
    return headers


# --- the judge --------------------------------------------------------------------------------


def one_input(data: bytes) -> float:
    """Run one input; return its CPU time in seconds.

    Raises:
        CostError: It costs too much.
    """
    made = call(data)
    before = getrusage(RUSAGE_SELF).ru_maxrss
    took = timed(made)
    if getrusage(RUSAGE_SELF).ru_maxrss - before > _GROWTH_KIB:
        check_memory(made.run)
    return took


def timed(made: Call) -> float:
    """Return the CPU time of the longest step; repeat the call if that is too long.

    Raises:
        CostError: It is too long in all repetitions.
    """
    least = _step_seconds(made)
    for _ in range(_AGAIN):
        if max(least) <= MAX_SECONDS:
            return max(least)
        collect()
        # Divide by the slowdown that other work on the machine causes now.
        slower = max(1.0, _reference_seconds() / _REFERENCE_SECONDS)
        least = [
            min(one, other / slower) for one, other in zip(least, _step_seconds(made), strict=True)
        ]
    if (took := max(least)) > MAX_SECONDS:
        raise CostError(f"a step takes {took * 1e3:.1f} ms, more than {MAX_SECONDS * 1e3:.0f}")
    return took


def _reference_seconds() -> float:
    """Return the CPU time that a fixed piece of work takes now."""
    began = time.thread_time()
    for number in range(20_000):
        _REFERENCE.search(b"[0]", number % 3)
    return time.thread_time() - began


_REFERENCE = re.compile(rb"[{}\[\]]")
_REFERENCE_SECONDS = min(_reference_seconds() for _ in range(20))


def _step_seconds(made: Call) -> list[float]:
    times = [time.thread_time()]
    for _ in made.steps():
        times.append(time.thread_time())  # noqa: PERF401 - not at once
    times.append(time.thread_time())
    return [after - before for before, after in pairwise(times)]


def check_memory(run: Work) -> int:
    """Return the peak memory of ``run`` in bytes.

    Raises:
        CostError: It is too much.
    """
    tracemalloc.start()
    try:
        run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > MAX_PEAK_BYTES:
        raise CostError(f"it takes {peak >> 20} MiB, more than {MAX_PEAK_BYTES >> 20}")
    return peak


# --- the search -------------------------------------------------------------------------------


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Return random inputs."""
    chooser = random.Random(seed)
    for _ in range(count):
        yield chooser.randbytes(_TAPE_BYTES)


def changed(tape: bytes, others: list[bytes], chooser: random.Random) -> bytes:
    """Return a mutation of ``tape``."""
    made = bytearray(tape)
    for _ in range(1 + chooser.randrange(4)):
        at = chooser.randrange(len(made))
        kind = chooser.randrange(4)
        if kind == 0:
            made[at] = chooser.randrange(256)
        elif kind == 1:
            made.insert(at, chooser.randrange(256))
        elif kind == 2 and len(made) > 1:
            del made[at]
        else:
            made[at:] = chooser.choice(others)[at:]
        made = made or bytearray(b"\0")
    return bytes(made[:_TAPE_BYTES])


class Costliest:
    """The costliest tapes; requests and responses are kept separately."""

    def __init__(self) -> None:
        self._kept: dict[bool, list[tuple[float, bytes]]] = {True: [], False: []}

    def add(self, tape: bytes, took: float) -> None:
        """Keep ``tape`` if it is among the costliest."""
        kept = self._kept[bool(call(tape).response)]
        if len(kept) < _KEPT or took > kept[-1][0]:
            kept.append((took, tape))
            kept.sort(reverse=True)
            del kept[_KEPT:]

    def next(self, chooser: random.Random) -> bytes:
        """Return a random tape, or a mutation of a kept one."""
        kept = self._kept[chooser.random() < _SHARE_OF_RESPONSES]
        if not kept or chooser.random() < _SHARE_OF_NEW:
            return chooser.randbytes(_TAPE_BYTES)
        tapes = [tape for _, tape in kept]
        return changed(chooser.choice(tapes), tapes, chooser)

    def shown(self) -> Iterator[str]:
        """Return a line for each of the costliest."""
        for kept in self._kept.values():
            for took, tape in kept[:5]:
                yield f"{took * 1e3:8.2f} ms  {described(tape)}"


def search(limit_seconds: float, seed: int) -> tuple[int, Costliest, list[Path]]:
    """Search inputs that cost too much; return the runs, the costliest, and files of findings."""
    chooser = random.Random(seed)
    costliest, findings = Costliest(), list[Path]()
    ends_at, runs = time.monotonic() + limit_seconds, 0
    while time.monotonic() < ends_at:
        tape = costliest.next(chooser)
        runs += 1
        try:
            costliest.add(tape, one_input(tape))
        except Exception as error:
            findings.append(_kept(tape, error))
    return runs, costliest, findings


def _kept(tape: bytes, error: Exception) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"finding-{hashlib.sha256(tape).hexdigest()[:12]}"
    file.write_bytes(tape)
    print(f"{file}: {type(error).__name__}: {error}\n  {described(tape)}", flush=True)
    return file


def described(tape: bytes) -> str:
    """Return a description of a tape in one line."""
    made = call(tape)
    headers = {name: value[:40] for name, value in made.headers.items()}
    shown = made.response[0] if made.response else made.body
    return (
        f"{made.configuration} {headers} body {len(made.body)} response {len(made.response)} pieces"
        f" {made.kind}: {shown[:150]!r} ... {shown[-60:]!r}"
    )


def main(arguments: list[str]) -> None:
    """Search for the time in the options, or run one file; exit with 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="make fuzz TARGET=cost")
    parser.add_argument("-max_total_time", type=float, default=600.0)
    parser.add_argument("-seed", type=int, default=time.time_ns())
    parser.add_argument("file", type=Path, nargs="?", help="a finding to be run again")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        stack.enter_context(quiet())
        if given.file is not None:
            tape = given.file.read_bytes()
            print(described(tape))
            print(f"{one_input(tape) * 1e3:.2f} ms, {check_memory(call(tape).run) >> 10} KiB")
            return
        print(f"seed {given.seed}", flush=True)
        runs, costliest, findings = search(given.max_total_time, given.seed)
    print(f"{runs} runs, {len(findings)} findings; the costliest took:")
    print(*costliest.shown(), sep="\n")
    if findings:
        sys.exit(1)
