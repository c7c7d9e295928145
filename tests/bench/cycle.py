"""The scheduling cycle and the prefix index by size, without anything around them."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.in_process import least_us, scraped

from epp.config import DEFAULT_CONFIG, GraphBuilder, PluginGraph, PluginRegistry, load_text
from epp.parsing import parse
from epp.request_control import DataProducer, PreRequest
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    Plugin,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import make_endpoint

SIZES = (10, 100, 1000)
PROMPT_BYTES = (500, 16_000, 400_000)


@dataclass(frozen=True, slots=True)
class Cycle:
    """One scheduling cycle over N endpoints."""

    endpoints: int
    schedule_us: float
    """Scheduler.schedule() alone, without an observer."""
    cycle_us: float
    """Producers and schedule()."""
    plugins: Mapping[str, float]
    """Share of the observed cycle per plugin call; ``framework`` is the rest."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix producer by prompt size; 10 endpoints with full caches, so that entries evict."""

    prompt_bytes: int
    new_us: float
    """prepare() and attach() of a prompt nobody has."""
    known_us: float
    """The same of one that an endpoint holds whole."""
    enter_new_us: float
    """pre_request() of the new prompt."""
    enter_known_us: float
    """pre_request() of the known one, to the endpoint that holds it."""


class Recording:
    """Sums up plugin calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def plugin_called(self, extension_point: str, plugin: Plugin, seconds: float) -> None:
        key = f"{plugin.name} ({extension_point})"
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds


def cycles(repeats: int) -> list[Cycle]:
    """Measure the cycle at every size."""
    return [_cycle(count, repeats) for count in SIZES]


def prefixes(repeats: int) -> list[Prefix]:
    """Measure the data producers and the entry into the index at every prompt size."""
    return [_prefix(size, repeats) for size in PROMPT_BYTES]


def _cycle(count: int, repeats: int) -> Cycle:
    endpoints = tuple(
        scraped(make_endpoint(f"default/server-{n}", address=f"10.0.0.1:{8000 + n}"), n, 0.0)
        for n in range(count)
    )
    graph, observed = build_graph(None), Recording()
    producers = graph.implementing(DataProducer)
    hooks = graph.implementing(PreRequest)
    # Something in the index: 2000 earlier requests.
    for number in range(2000):
        request, state = _request(-1 - number), CycleState()
        produce(producers, request, endpoints, state)
        result = graph.scheduler.schedule(request, endpoints, state)
        for hook in hooks:
            hook.pre_request(request, result, state)

    loops = max(20, 10_000 // count)
    requests = [_request(n) for n in range(loops)]

    def produced(number: int) -> CycleState:
        state = CycleState()
        produce(producers, requests[number], endpoints, state)
        return state

    states = [produced(n) for n in range(loops)]
    schedule = graph.scheduler.schedule
    schedule_us = least_us(lambda n: schedule(requests[n], endpoints, states[n]), loops, repeats)
    cycle_us = least_us(lambda n: schedule(requests[n], endpoints, produced(n)), loops, repeats)
    return Cycle(count, schedule_us, cycle_us, _shares(build_graph(observed), observed, endpoints))


def _prefix(prompt_bytes: int, repeats: int) -> Prefix:
    graph = build_graph(None)
    producers = graph.implementing(DataProducer)
    (hook,) = graph.implementing(PreRequest)
    pool = [make_endpoint(f"default/server-{n}") for n in range(SIZES[0])]
    results = [SchedulingResult({"": ProfileResult("", [ScoredEndpoint(e, 1)])}, "") for e in pool]

    def handled(requests: Sequence[LLMRequest]) -> tuple[float, float]:
        """Return the microseconds a request took in the producers and in the hook."""
        states = [CycleState() for _ in requests]
        began = time.process_time()
        for request, state in zip(requests, states, strict=True):
            produce(producers, request, pool, state)
        produced = time.process_time()
        for number, (request, state) in enumerate(zip(requests, states, strict=True)):
            hook.pre_request(request, results[number % len(pool)], state)
        entered = time.process_time()
        each_us = 1e6 / len(requests)
        return (produced - began) * each_us, (entered - produced) * each_us

    # 31250 blocks an endpoint, of 256 bytes: one prompt more than fill them all.
    loops = max(len(pool), 400_000 // prompt_bytes)
    prompts = len(pool) * (31_250 // -(-prompt_bytes // 256) + 1)
    for first in range(-prompts, 0, loops):
        handled([_prompt(number, prompt_bytes) for number in range(first, first + loops)])
    times = []
    for first in range(loops, (repeats + 1) * loops, loops):
        requests = [_prompt(number, prompt_bytes) for number in range(first, first + loops)]
        times.append((*handled(requests), *handled(requests)))
    new, enter_new, known, enter_known = map(min, zip(*times, strict=True))
    return Prefix(prompt_bytes, new, known, enter_new, enter_known)


def _prompt(number: int, size: int) -> LLMRequest:
    return LLMRequest(str(number), "bench", prompt=b"%012d" % number + b"x" * (size - 12))


def _shares(
    graph: PluginGraph, observed: Recording, endpoints: Sequence[Endpoint]
) -> dict[str, float]:
    total = 0.0
    for number in range(max(200, 20_000 // len(endpoints))):
        request, state = _request(number), CycleState()
        began = time.perf_counter()
        for producer in graph.implementing(DataProducer):
            started = time.perf_counter()
            producer.prepare(request, state)
            producer.attach(request, endpoints, state)
            observed.plugin_called("DataProducer", producer, time.perf_counter() - started)
        graph.scheduler.schedule(request, endpoints, state)
        total += time.perf_counter() - began
    shares = {name: seconds / total for name, seconds in observed.seconds.items()}
    shares["framework"] = 1.0 - sum(shares.values())
    return shares


def build_graph(observer: Recording | None) -> PluginGraph:
    """Return the plugins of the default configuration."""
    services: dict[str, Callable[[str], object]] = {
        "rng": random.Random,
        "clock": lambda _: time.monotonic,
    }
    builder = GraphBuilder(PluginRegistry.from_entry_points(), services=services, observer=observer)
    return builder.build(load_text(DEFAULT_CONFIG, "default"), "default")


def produce(
    producers: Sequence[DataProducer],
    request: LLMRequest,
    endpoints: Sequence[Endpoint],
    state: CycleState,
) -> None:
    """Run the data producers as the director does."""
    for producer in producers:
        producer.prepare(request, state)
    for producer in producers:
        producer.attach(request, endpoints, state)


def _body(number: int) -> bytes:
    prompt = b"%012d" % number + b"the quick brown fox jumps over the lazy dog " * 12
    return b'{"model":"bench","prompt":"' + prompt[:500] + b'","max_tokens":64,"stream":false}'


def _request(number: int) -> LLMRequest:
    return parse(f"request-{number}", "/v1/completions", {}, _body(number))
