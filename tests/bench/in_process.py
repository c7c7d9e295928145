"""What is above the transport, measured in this process: the cycle, the parser, the whole path."""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from statistics import median

from epp.app import App, ServeSettings
from epp.config import DEFAULT_CONFIG, GraphBuilder, PluginGraph, PluginRegistry, load_text
from epp.data_layer.plugins import EndpointSpec
from epp.ext_proc import ExtProcService
from epp.observability import configure
from epp.parsing import parse
from epp.request_control import DataProducer, PreRequest
from epp.scheduling import CycleState, Endpoint, EndpointMetrics, LLMRequest, Plugin
from epp.testing import make_endpoint

SIZES = (10, 100, 1000)
PROMPT = b'"prompt":"'
OPEN_STREAMS = 16
"""Requests in flight, so that loads and answers are not those of an idle pool."""

_NULL = open(os.devnull, "w")  # noqa: PTH123, SIM115 - a device, open to the end of the process


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
class Path:
    """One request through ExtProcStream, without a transport."""

    mode: str
    chunks: int
    messages: int
    logged_us: float
    """With the canonical line written to /dev/null."""
    silent_us: float
    """With log level warning."""


class _Recording:
    """Sums up plugin calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def plugin_called(self, extension_point: str, plugin: Plugin, seconds: float) -> None:
        key = f"{plugin.name} ({extension_point})"
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds


class NullStream:
    """Takes answers and forgets them."""

    is_writable = True

    def send(self, message: bytes) -> None:
        pass

    def finish(self, code: int = 0, message: str = "") -> None:
        pass


def cycles(repeats: int) -> list[Cycle]:
    """Measure the cycle at every size."""
    return [_cycle(count, repeats) for count in SIZES]


def parse_us(repeats: int) -> float:
    """Return the time to parse a body with a prompt of 500 bytes."""
    body = _body(0)
    headers = {"content-type": "application/json"}
    return _median_us(lambda _: parse("request-0", "/v1/completions", headers, body), 2000, repeats)


def paths(recorded: Mapping[tuple[str, int], Sequence[bytes]], repeats: int) -> list[Path]:
    """Measure the whole path for the recorded messages of each (mode, chunks)."""
    found = []
    for (mode, chunks), messages in recorded.items():
        # In turns, so that noise on the machine hits both alike.
        times: dict[str, list[float]] = {"info": [], "warning": []}
        services = {level: _service(level, messages) for level in times}
        for repeat in range(repeats + 1):
            for level, service in services.items():
                times[level].append(_path_us(service, messages, repeat))
        logged, silent = (median(each[1:]) for each in times.values())  # the first is warm-up
        found.append(Path(mode, chunks, len(messages), logged, silent))
    return found


def _service(level: str, messages: Sequence[bytes]) -> ExtProcService:
    with silenced(level):
        service = new_service()
        # A logger is bound at its first line: without a request here it would be at another level.
        feed(service, distinct(messages, 0, 50))
        return service


def _path_us(service: ExtProcService, messages: Sequence[bytes], repeat: int) -> float:
    count = max(50, 20_000 // (len(messages) + 4))
    requests = distinct(messages, repeat * count, count)
    began = time.process_time()
    feed(service, requests)
    return (time.process_time() - began) / count * 1e6


@contextlib.contextmanager
def silenced(level: str) -> Iterator[None]:
    """Log at ``level`` to /dev/null; what is made inside logs there for good."""
    # The file stays open: loggers of modules keep the first one that they saw.
    with redirect_stdout(_NULL):
        configure(level=level)
        yield


def new_service(endpoints: int = 10) -> ExtProcService:
    """Return the ext_proc service of a whole EPP with a pool that was scraped just now."""
    config = load_text(DEFAULT_CONFIG, "default")
    names = [f"10.0.{n // 250}.{n % 250 + 1}:8000" for n in range(endpoints)]
    app = App(ServeSettings(config=config, config_source="default", endpoints=tuple(names)))
    app.store.replace_endpoints(
        "bench", [EndpointSpec(f"default/server-{n}", name) for n, name in enumerate(names)]
    )
    now = time.monotonic()
    for number, endpoint in enumerate(app.store.snapshot):
        _scraped(endpoint, number, now)
    return app.service


def feed(service: ExtProcService, requests: Sequence[Sequence[bytes]]) -> None:
    """Run each request's messages through a stream of its own; streams end some requests later."""
    stream = NullStream()
    open_streams = []
    for messages in requests:
        handler = service.opened(stream, {})
        take = handler.message
        for message in messages:
            take(message)
        open_streams.append(handler)
        if len(open_streams) >= OPEN_STREAMS:
            open_streams.pop(0).reset()
    for handler in open_streams:
        handler.reset()


def distinct(messages: Sequence[bytes], first: int, count: int) -> list[list[bytes]]:
    """Return the messages ``count`` times, each time with another prompt of the same length."""
    (index,) = (n for n, message in enumerate(messages) if PROMPT in message)
    before, _, after = messages[index].partition(PROMPT)
    head = before + PROMPT
    return [
        [*messages[:index], head + b"%012d" % number + after[12:], *messages[index + 1 :]]
        for number in range(first, first + count)
    ]


def _cycle(count: int, repeats: int) -> Cycle:
    endpoints = tuple(
        _scraped(make_endpoint(f"default/server-{n}", address=f"10.0.0.1:{8000 + n}"), n, 0.0)
        for n in range(count)
    )
    graph, observed = _graph(None), _Recording()
    producers = graph.implementing(DataProducer)
    hooks = graph.implementing(PreRequest)
    # Something in the index: 2000 earlier requests.
    for number in range(2000):
        request, state = _request(-1 - number), CycleState()
        _produce(producers, request, endpoints, state)
        result = graph.scheduler.schedule(request, endpoints, state)
        for hook in hooks:
            hook.pre_request(request, result, state)

    loops = max(20, 10_000 // count)
    requests = [_request(n) for n in range(loops)]

    def produced(number: int) -> CycleState:
        state = CycleState()
        _produce(producers, requests[number], endpoints, state)
        return state

    states = [produced(n) for n in range(loops)]
    schedule = graph.scheduler.schedule
    schedule_us = _median_us(lambda n: schedule(requests[n], endpoints, states[n]), loops, repeats)
    cycle_us = _median_us(lambda n: schedule(requests[n], endpoints, produced(n)), loops, repeats)
    return Cycle(count, schedule_us, cycle_us, _shares(_graph(observed), observed, endpoints))


def _shares(
    graph: PluginGraph, observed: _Recording, endpoints: Sequence[Endpoint]
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


def _graph(observer: _Recording | None) -> PluginGraph:
    services: dict[str, Callable[[str], object]] = {
        "rng": random.Random,
        "clock": lambda _: time.monotonic,
    }
    builder = GraphBuilder(PluginRegistry.from_entry_points(), services=services, observer=observer)
    return builder.build(load_text(DEFAULT_CONFIG, "default"), "default")


def _produce(
    producers: Sequence[DataProducer],
    request: LLMRequest,
    endpoints: Sequence[Endpoint],
    state: CycleState,
) -> None:
    for producer in producers:
        producer.prepare(request, state)
    for producer in producers:
        producer.attach(request, endpoints, state)


def _scraped(endpoint: Endpoint, number: int, now: float) -> Endpoint:
    page = EndpointMetrics(
        waiting_requests=number % 5,
        running_requests=number % 7,
        kv_cache_usage=number % 11 / 20,
        requested_at=now,
    )
    endpoint.metrics = page
    endpoint.load.observe(
        waiting=page.waiting_requests,
        running=page.running_requests,
        kv_cache_usage=page.kv_cache_usage,
        requested_at=now,
    )
    return endpoint


def _body(number: int) -> bytes:
    prompt = b"%012d" % number + b"the quick brown fox jumps over the lazy dog " * 12
    return b'{"model":"bench",' + PROMPT + prompt[:500] + b'","max_tokens":64,"stream":false}'


def _request(number: int) -> LLMRequest:
    return parse(f"request-{number}", "/v1/completions", {}, _body(number))


def _median_us(call: Callable[[int], object], loops: int, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        began = time.process_time()
        for number in range(loops):
            call(number)
        times.append((time.process_time() - began) / loops * 1e6)
    return median(times[1:])
