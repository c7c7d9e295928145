"""Cost of predicted times compared with the default profile: a decision, and a first token."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from epp.building import make_builder
from epp.config import DEFAULT_CONFIG, PluginGraph, load_text
from epp.data_layer.plugins import EndpointListener
from epp.observability import Metrics, PluginWatch
from epp.request_control import DataProducer, PreRequest
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    PostSchedule,
    ProfileResult,
    Scheduler,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import make_endpoint
from epp_plugins.data_producers.predicted_time import PredictedTimeProducer
from epp_plugins.predicted_time import Constants, FleetModel, PredictedRequest
from tools.bench.cycle import produce
from tools.bench.in_process import scraped

SIZES = (4, 10, 100)
"""Numbers of endpoints."""
AIMS_US = {4: 25.0, 10: 25.0, 100: 120.0}
"""Most CPU of a decision by the number of endpoints, without what the default profile has, too."""
FIRST_TOKEN_AIM_US = 10.0
_CONFIG = Path("deploy/config/predicted-time.yaml")
_PROMPTS = 64
_IN_FLIGHT = 3
"""Requests in flight at each endpoint."""
_WARM_UP = 400
"""First tokens from which the model has learned."""


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU microseconds with a number of endpoints, the least of all repetitions."""

    endpoints: int
    default_us: float
    """Producers and ``schedule()`` of the default configuration."""
    predicted_us: float
    """The same of deploy/config/predicted-time.yaml, which has the same prefix index."""
    decision_us: float
    """The model's part: forecast and scores."""
    sent_us: float
    """A request that is sent."""
    first_token_us: float
    """A first token."""


def measure(repeats: int) -> list[Costs]:
    """Return the costs for each number of endpoints."""
    return [_measure(count, repeats) for count in SIZES]


def table(measured: Sequence[Costs]) -> Table:
    """Return them for people."""
    shown = Table("endpoints", title="Predicted times, CPU us (aim)")
    for heading in ("default cycle", "predicted cycle", "its decision", "sent", "first token"):
        shown.add_column(heading, justify="right")
    for each in measured:
        shown.add_row(
            str(each.endpoints),
            f"{each.default_us:.1f}",
            f"{each.predicted_us:.1f}",
            f"{each.decision_us:.1f} ({AIMS_US[each.endpoints]:.0f})",
            f"{each.sent_us:.1f}",
            f"{each.first_token_us:.1f} ({FIRST_TOKEN_AIM_US:.0f})",
        )
    return shown


class _Cell:
    """One configuration over ``count`` endpoints that hold parts of the prompts."""

    def __init__(self, config: str, count: int) -> None:
        self.now = 1.0
        self.endpoints = tuple(
            scraped(make_endpoint(f"default/server-{n}", address=f"10.0.0.1:{8000 + n}"), n, 0.0)
            for n in range(count)
        )
        self.graph = _graph(config, lambda: self.now)
        made = self.graph.scheduler
        self._schedule = Scheduler(made.handler, made.profiles, guards=self.graph.guards).schedule
        self._producers = self.graph.implementing(DataProducer)
        for listener in self.graph.implementing(EndpointListener):
            for endpoint in self.endpoints:
                listener.endpoint_added(endpoint)
        self.prompts = [_prompt(number) for number in range(_PROMPTS)]
        (index,) = self.graph.implementing(PostSchedule)
        for number, request in enumerate(self.prompts):
            state = CycleState()
            produce(self._producers, request, self.endpoints, state)
            chosen = self.endpoints[number % count]
            index.post_schedule(request, _chosen(chosen), state)

    def decide(self, repeat: int) -> float:
        """Return the microseconds of a decision; ``repeat`` numbers the repetitions."""
        began = time.process_time()
        for request in self.prompts:
            state = CycleState()
            produce(self._producers, request, self.endpoints, state)
            self._schedule(request, self.endpoints, state)
        return (time.process_time() - began) / len(self.prompts) * 1e6


def _measure(count: int, repeats: int) -> Costs:
    default, predicted = _Cell(DEFAULT_CONFIG, count), _Cell(_CONFIG.read_text(), count)
    (producer,) = (
        each
        for each in predicted.graph.implementing(PreRequest)
        if isinstance(each, PredictedTimeProducer)
    )
    # The constant times of the benchmark say nothing about the predictions' worth.
    producer.model.use(Constants(trust_samples=0, distrust_above=1e6))
    producer.model.trust.is_given = True
    traffic = _Traffic(producer.model, predicted.endpoints)
    traffic.run(_WARM_UP + count)
    times = [(default.decide(n), predicted.decide(n), *traffic.run(256)) for n in range(repeats)]
    return Costs(count, *(min(each) for each in zip(*times, strict=True)))


class _Traffic:
    """Requests that are decided, sent and have their first tokens, in turns."""

    def __init__(self, model: FleetModel, endpoints: Sequence[Endpoint]) -> None:
        self._model = model
        self._keys = [each.name for each in endpoints]
        self._now = 1.0
        self._in_flight: list[PredictedRequest] = []

    def run(self, requests: int) -> tuple[float, float, float]:
        """Return the microseconds of a decision, of a request sent, and of a first token."""
        model, keys, clock = self._model, self._keys, time.process_time
        decided = sent = first = 0.0
        for number in range(requests):
            self._now += 0.01
            key = keys[number % len(keys)]
            began = clock()
            forecast = model.table(keys, 5000.0, self._now, {key: 1000.0 + number})
            costs = forecast.costs()
            least = min(costs)
            [least / cost for cost in costs]
            at = clock()
            decided += at - began
            self._in_flight.append(model.sent(key, 1000.0 + number, self._now))
            sent += clock() - at
            if len(self._in_flight) > _IN_FLIGHT * len(keys):
                request = self._in_flight.pop(0)
                began = clock()
                model.first_token(request, self._now)
                first += clock() - began
                model.ended(request, self._now)
        each_us = 1e6 / requests
        return decided * each_us, sent * each_us, first * each_us


def _graph(config: str, clock: Callable[[], float]) -> PluginGraph:
    loaded = load_text(config, "bench")
    return make_builder(seed=0, clock=clock).build(loaded, observer=PluginWatch(Metrics()))


def _prompt(number: int) -> LLMRequest:
    return LLMRequest(str(number), "bench", prompt=b"%012d" % number + b"x" * 16_000, stream=True)


def _chosen(endpoint: Endpoint) -> SchedulingResult:
    return SchedulingResult({"": ProfileResult("", [ScoredEndpoint(endpoint, 1)])}, "")
