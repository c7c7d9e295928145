"""Scheduling cycle and prefix index by size, in isolation."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from epp.building import make_builder
from epp.config import PluginGraph, default_config
from epp.observability import Metrics, PluginWatch
from epp.request_control import DataProducer
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    NullObserver,
    Plugin,
    PluginObserver,
    PostSchedule,
    ProfileResult,
    Scheduler,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import make_endpoint
from tools.bench.in_process import least_us, scraped

SIZES = (10, 100, 1000)
PROMPT_CHARACTERS = (1_000, 16_000, 128_000, 1_000_000)
_CELL_SECONDS = 0.02
"""About so long the same thing is repeated between two readings of the clock."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """Producers and schedule() over N endpoints, without entering the prompt in the index."""

    endpoints: int
    prompt_characters: int
    new_us: float
    """A prompt nobody has."""
    known_us: float
    """Cost of a prompt that an endpoint has cached completely."""
    held_by_all_us: float
    """Cost of a prompt that every endpoint has cached completely."""
    plugins: Mapping[str, float]
    """Share per plugin call in the cycle of the known prompt; ``framework`` is the rest."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix producer by prompt size; 10 endpoints with full caches, so that entries evict."""

    prompt_characters: int
    new_us: float
    """prepare() and attach() of a prompt nobody has."""
    known_us: float
    """The same of one that an endpoint holds whole."""
    enter_new_us: float
    """post_schedule() of the new prompt."""
    enter_known_us: float
    """post_schedule() of the known one, to the endpoint that holds it."""


class Recording(NullObserver):
    """Sums up the durations of plugin calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        """Return what adds to the sum of ``plugin``."""
        key = f"{plugin.name} ({extension_point})"
        seconds = self.seconds

        def timed(took: float) -> None:
            seconds[key] = seconds.get(key, 0.0) + took

        return timed


class Cell:
    """The default graph over ``count`` endpoints, and prompts of one size."""

    def __init__(self, count: int, characters: int, observer: PluginObserver) -> None:
        self.endpoints = tuple(
            scraped(make_endpoint(f"default/server-{n}", address=f"10.0.0.1:{8000 + n}"), n, 0.0)
            for n in range(count)
        )
        graph = build_graph(observer)
        made = graph.scheduler
        # Without its hooks: what they take is measured by itself.
        self._schedule = Scheduler(made.handler, made.profiles, guards=graph.guards).schedule
        self._producers = graph.implementing(DataProducer)
        # More than this would be thrown out of the endpoints' caches again.
        loops = min(max(20, 200_000 // count), 10_000_000 // characters)
        self.new = [_prompt(n, characters) for n in range(loops)]
        self.known = [_prompt(-1 - n, characters) for n in range(loops)]
        self.held_by_all = [_prompt(1_000_000 + n, characters) for n in range(3)]
        (hook,) = graph.implementing(PostSchedule)
        entries = [
            *((request, self.endpoints[n % count]) for n, request in enumerate(self.known)),
            *((request, each) for request in self.held_by_all for each in self.endpoints),
        ]
        for request, endpoint in entries:
            state = CycleState()
            produce(self._producers, request, self.endpoints, state)
            hook.post_schedule(request, _chosen(endpoint), state)

    def once(self, request: LLMRequest) -> None:
        """Run the cycle."""
        state = CycleState()
        produce(self._producers, request, self.endpoints, state)
        self._schedule(request, self.endpoints, state)

    def least_us(self, requests: Sequence[LLMRequest], repeats: int) -> float:
        """Return the least time a request took."""
        some = requests[: self._count(requests)]
        return least_us(lambda n: self.once(some[n]), len(some), repeats)

    def shares(self, recorded: Recording) -> dict[str, float]:
        """Return the share of each plugin call in the cycle of a known prompt: of medians."""
        requests = self.known[: self._count(self.known)]
        parts: dict[str, list[float]] = {}
        totals = []
        for request in requests:
            recorded.seconds.clear()
            state = CycleState()
            began = time.perf_counter()
            for producer in self._producers:
                started = time.perf_counter()
                producer.prepare(request, state)
                producer.attach(request, self.endpoints, state)
                recorded.timer("DataProducer", producer)(time.perf_counter() - started)
            self._schedule(request, self.endpoints, state)
            totals.append(time.perf_counter() - began)
            for name, seconds in recorded.seconds.items():
                parts.setdefault(name, []).append(seconds)
        shares = {name: median(each) / median(totals) for name, each in parts.items()}
        return shares | {"framework": 1.0 - sum(shares.values())}

    def _count(self, requests: Sequence[LLMRequest]) -> int:
        """Return how many requests take about as long as a reading of the clock is to be apart."""
        self.once(requests[0])
        began = time.perf_counter()
        self.once(requests[0])
        return max(3, min(len(requests), int(_CELL_SECONDS / (time.perf_counter() - began))))


def cycles(repeats: int) -> list[Cycle]:
    """Measure the cycle at every number of endpoints and every size of the prompt."""
    return [_cycle(count, size, repeats) for count in SIZES for size in PROMPT_CHARACTERS]


def _cycle(count: int, characters: int, repeats: int) -> Cycle:
    cell = Cell(count, characters, PluginWatch(Metrics()))
    prompts = (cell.new, cell.known, cell.held_by_all)
    new_us, known_us, held_by_all_us = (cell.least_us(each, repeats) for each in prompts)
    recorded = Recording()
    shares = Cell(count, characters, recorded).shares(recorded)
    return Cycle(count, characters, new_us, known_us, held_by_all_us, shares)


def prefixes(repeats: int) -> list[Prefix]:
    """Measure the data producers and the entry into the index at every size of the prompt."""
    return [_prefix(size, repeats) for size in PROMPT_CHARACTERS]


def _prefix(characters: int, repeats: int) -> Prefix:
    graph = build_graph(None)
    producers = graph.implementing(DataProducer)
    (hook,) = graph.implementing(PostSchedule)
    pool = [make_endpoint(f"default/server-{n}") for n in range(SIZES[0])]
    results = [_chosen(endpoint) for endpoint in pool]

    def handled(requests: Sequence[LLMRequest]) -> tuple[float, float]:
        """Return the microseconds a request took in the producers and in the hook."""
        states = [CycleState() for _ in requests]
        began = time.process_time()
        for request, state in zip(requests, states, strict=True):
            produce(producers, request, pool, state)
        produced = time.process_time()
        for number, (request, state) in enumerate(zip(requests, states, strict=True)):
            hook.post_schedule(request, results[number % len(pool)], state)
        entered = time.process_time()
        each_us = 1e6 / len(requests)
        return (produced - began) * each_us, (entered - produced) * each_us

    # 31250 blocks an endpoint, of 256 bytes: one prompt more than fill them all.
    loops = max(len(pool), 400_000 // characters)
    prompts = len(pool) * (31_250 // -(-characters // 256) + 1)
    for first in range(-prompts, 0, loops):
        handled([_prompt(number, characters) for number in range(first, first + loops)])
    times = []
    for first in range(loops, (repeats + 1) * loops, loops):
        requests = [_prompt(number, characters) for number in range(first, first + loops)]
        times.append((*handled(requests), *handled(requests)))
    new, enter_new, known, enter_known = map(min, zip(*times, strict=True))
    return Prefix(characters, new, known, enter_new, enter_known)


def _prompt(number: int, size: int) -> LLMRequest:
    return LLMRequest(str(number), "bench", prompt=b"%012d" % number + b"x" * (size - 12))


def _chosen(endpoint: Endpoint) -> SchedulingResult:
    return SchedulingResult({"": ProfileResult("", [ScoredEndpoint(endpoint, 1)])}, "")


def build_graph(observer: PluginObserver | None) -> PluginGraph:
    """Return the plugins of the default configuration."""
    return make_builder(seed=0).build(default_config(), observer=observer)


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
