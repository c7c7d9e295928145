"""Fuzz target: request control with plugins that return and write invalid values.

An input chooses an extension point, an action on one request there, whether that request is
compressed and rewritten, and whether flow control makes the others wait. Only this request may
fail: the next one is served, nothing stays reserved, and the plugin's failures are counted by name.
"""

import asyncio
import gzip
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, cast

from structlog.testing import capture_logs

from epp.building import make_builder
from epp.config import PluginGraph, load_text
from epp.flow_control import FlowController
from epp.flow_control.building import flow_settings
from epp.observability import FlowMetrics, Metrics, PluginWatch
from epp.request_control import PendingDecision, Pipeline, RequestError, RoutedRequest
from epp.request_control.plugins import (
    PRODUCER_FAILURES,
    REQUEST_HEADERS_TO_SET,
    RESPONSE_USAGE,
    Admitter,
    DataProducer,
    EndCause,
    PreRequest,
    RequestHeaderProcessor,
    ResponseBodyStart,
    ResponseComplete,
    ResponseHead,
    ResponseHeader,
    Screener,
)
from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    GuardRails,
    LLMRequest,
    Picker,
    Plugin,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    ScoredEndpoint,
    Scorer,
    WeightedScorer,
)
from epp.testing import make_endpoint
from tools.fuzz.tape import Tape
from tools.harness.request_control import BODY, Epp, NotingPlugin, make_parsers

WORDS: tuple[bytes, ...] = ()
_MARK = "x-junk"
_GZIP = {"content-encoding": "gzip", "x-llm-d-model-name-rewrite": "tuned"}
_FOREIGN = make_endpoint("default/foreign", address="10.9.9.9:1")
_VALUES: tuple[Any, ...] = (
    *(None, 7, -1, "text", b"bytes", object(), float("nan"), True, Exception, lambda: None),
    *((), [], {}, [7], [None], [[]], {"a": 7}, {7: "a"}, {"main": None}),
    *([_FOREIGN], [ScoredEndpoint(_FOREIGN, 1.0)], [ScoredEndpoint(cast("Endpoint", 7), 1.0)]),
    *(ProfileResult("main"), SchedulingResult({}, "main")),
)
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
_KEYS: tuple[Any, ...] = (REQUEST_HEADERS_TO_SET, PRODUCER_FAILURES, RESPONSE_USAGE)
_ERRORS = (RuntimeError("on purpose"), SystemExit(3), KeyError(), AssertionError(), TimeoutError())
_RETURNING = ("filter", "score", "pick", "pick_profiles", "process_results", "screen")
_OTHERS = (
    *("process_request_headers", "prepare", "attach", "admit", "pre_schedule", "post_schedule"),
    *("pre_request", "response_headers", "response_body_started", "response_complete"),
)
POINTS = (*_RETURNING, *_OTHERS)
_FIELDS = ("primary", "profiles", "destination")
_REQUEST_FIELDS = ("fairness_id", "priority", "model", "target_model", "headers", "prompt")


class Deed:
    """Action on the marked request at one extension point."""

    def __init__(self, tape: Tape) -> None:
        self.point = tape.choice(POINTS)
        self.value = tape.choice(_VALUES)
        self._kind = tape.number(5)
        self._error = tape.choice(_ERRORS)
        self._key, self._field = tape.choice(_KEYS), tape.choice(_FIELDS)
        self._request_field = tape.choice(_REQUEST_FIELDS)
        self.is_done = False

    def at(self, point: str, request: LLMRequest, state: CycleState, about: object) -> bool:
        """Act if ``point`` is the chosen one; return whether the plugin must also return junk."""
        if point != self.point or self.is_done or _MARK not in request.headers:
            return False
        self.is_done = True
        if self._kind == 0:
            raise self._error
        if self._kind == 1:
            state.write(self._key, self.value)
        elif self._kind == 2 and isinstance(about, SchedulingResult):
            setattr(about, self._field, self.value)
        elif self._kind == 3 and isinstance(about, SchedulingResult):
            for profile in about.profiles.values():
                profile.endpoints = self.value
        elif self._kind == 4 and point == "process_request_headers":
            setattr(request, self._request_field, self.value)
        elif isinstance(about, ResponseHead):
            about.set_headers = self.value
        return point in _RETURNING and self._kind != 1


class Junk(
    Filter,
    Scorer,
    Picker,
    ProfileHandler,
    RequestHeaderProcessor,
    DataProducer,
    Screener,
    Admitter,
    PreSchedule,
    PostSchedule,
    PreRequest,
    ResponseHeader,
    ResponseBodyStart,
    ResponseComplete,
):
    """A plugin that behaves at every extension point, except for one deed."""

    type: ClassVar[str] = "junk"

    def __init__(self, deed: Deed) -> None:
        self.name = "junk"
        self.deed = deed

    def _or_junk(
        self, point: str, result: Any, request: LLMRequest, state: CycleState, about: object = None
    ) -> Any:
        return self.deed.value if self.deed.at(point, request, state, about) else result

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        kept: list[Endpoint] = self._or_junk("filter", list(endpoints), request, state)
        return kept

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        scores: list[float] = self._or_junk("score", [0.5] * len(endpoints), request, state)
        return scores

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        picked: list[ScoredEndpoint] = self._or_junk("pick", [scored[0]], request, state)
        return picked

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        picked: Mapping[str, SchedulerProfile] = self._or_junk(
            "pick_profiles", {} if results else profiles, request, state
        )
        return picked

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        good = SchedulingResult(dict(results), "main")
        result: SchedulingResult = self._or_junk("process_results", good, request, state, good)
        # Half of the junk is a part of an otherwise good result.
        if result is not good and random.Random(repr(result)).random() < 0.5:
            good.profiles = {**results, "second": cast("ProfileResult", result)}
            return good
        return result

    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        seen: Sequence[Endpoint] = self._or_junk("screen", endpoints, request, state)
        return seen

    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        self.deed.at("process_request_headers", request, state, None)

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        self.deed.at("prepare", request, state, None)

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        self.deed.at("attach", request, state, None)

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        self.deed.at("admit", request, state, None)

    def pre_schedule(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> None:
        self.deed.at("pre_schedule", request, state, None)

    def post_schedule(
        self, request: LLMRequest, result: SchedulingResult, state: CycleState
    ) -> None:
        self.deed.at("post_schedule", request, state, result)

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        self.deed.at("pre_request", request, state, result)

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        self.deed.at("response_headers", request, state, response)

    def response_body_started(
        self, request: LLMRequest, served_by: Endpoint, state: CycleState
    ) -> None:
        self.deed.at("response_body_started", request, state, None)

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        self.deed.at("response_complete", request, state, None)


class JunkEpp(Epp):
    """A director with the junk plugin at every extension point, and a harmless one after it."""

    def pipeline(self, *plugins: Plugin) -> Pipeline:
        guards = GuardRails(observer=PluginWatch(self.metrics), disable_after=3)
        junk = next(each for each in plugins if isinstance(each, Junk))
        profiles = {
            name: SchedulerProfile(
                name=name,
                filters=[junk],
                scorers=[WeightedScorer(junk)],
                picker=junk,
                guards=guards,
            )
            for name in ("main", "second")
        }
        scheduler = Scheduler(
            junk, profiles, pre_schedule=[junk], post_schedule=[junk], guards=guards
        )
        return Pipeline.of(plugins, scheduler, guards, parsers=make_parsers())


@cache
def _graph() -> PluginGraph:
    return make_builder().build(
        load_text(
            HEAD + "featureGates: [flowControl]\n"
            "plugins: [{type: queue-scorer}, {type: concurrency-detector,"
            " parameters: {maxConcurrency: 2}}]\n"
            "flowControl: {saturationDetector: {pluginRef: concurrency-detector}}\n",
            "f",
        )
    )


class Run:
    """One input, run to the end."""

    def __init__(self, data: bytes) -> None:
        tape = Tape(data)
        self.deed = Deed(tape)
        self.is_queued, self.is_rewritten = tape.flip(), tape.flip()
        self.status = 0
        """Status of the response to the marked request; 0 if it was routed to an endpoint."""
        self.failures = 0.0
        """Number of counted failures of the plugin."""

    async def run(self) -> None:
        """Send the marked request between others, and check how all of them end."""
        metrics, notes = Metrics(), list[str]()
        endpoints = [make_endpoint(f"default/{n}", address=f"10.0.0.{n}:80") for n in range(2)]
        flow = None
        loop = asyncio.get_running_loop()
        if self.is_queued:
            flow = FlowController(
                pool=lambda: endpoints, clock=loop.time, observer=FlowMetrics(metrics, "")
            )
            flow.use(flow_settings(_graph()))
        junk, innocent = Junk(self.deed), NotingPlugin("innocent", notes)
        epp = JunkEpp(endpoints, metrics=metrics, plugins=[junk, innocent], flow=flow)
        outcomes: dict[str, RoutedRequest | RequestError] = {}
        for name in ("before", "marked", "after"):
            marked = {_MARK: "1"} if name == "marked" else {}
            changed = _GZIP if name == "marked" and self.is_rewritten else {}
            body = gzip.compress(BODY, mtime=0) if changed else BODY
            self._ask(epp, name, body, {**marked, **changed}, outcomes)
            if name == "before" and flow is not None:  # the next requests wait
                self._ask(epp, "filler", BODY, {}, outcomes)
        for _ in range(12):
            await asyncio.sleep(0)
            for name, outcome in list(outcomes.items()):
                if isinstance(outcome, RoutedRequest):
                    outcome.response_started(200, {"content-type": "text/plain"})
                    outcome.body_began()
                    outcome.close(EndCause.COMPLETED)
                elif name == "marked":
                    self.status = outcome.status
                else:
                    raise AssertionError(f"request {name!r} failed: {outcome}")
                del outcomes[name]
        self.failures = epp.total("plugin_failures_total")
        assert epp.in_flight == epp.director.in_flight == 0
        assert epp.director.pipeline.open_requests == 0
        assert flow is None or flow.waiting == 0
        assert self.failures == sum(epp.failures(point, junk) for point in _COUNTED)
        assert self.status in {0, 429, 500} or self.deed.point == "screen", self.status
        if self.status == 500:
            assert self.failures, self.deed.point

    @staticmethod
    def _ask(
        epp: Epp,
        name: str,
        body: bytes,
        headers: Mapping[str, str],
        outcomes: dict[str, RoutedRequest | RequestError],
    ) -> None:
        def note(outcome: RoutedRequest | RequestError) -> None:
            outcomes[name] = outcome

        try:
            decision = epp.ask(body, headers, request_id=name)
        except RequestError as error:
            note(error)
            return
        if isinstance(decision, PendingDecision):
            decision.then(note)
        else:
            note(decision)


_COUNTED = (
    *("Filter", "Scorer", "Picker", "ProfileHandler", "RequestHeaderProcessor", "DataProducer"),
    *("Screener", "Admitter", "PreSchedule", "PostSchedule", "PreRequest", "ResponseHeader"),
    *("ResponseBodyStart", "ResponseComplete"),
)


def one_input(data: bytes) -> Run:
    """Run one input; any exception is a finding."""
    run = Run(data)
    with capture_logs():
        asyncio.run(run.run())
    return run


def inputs(point: str, count: int) -> Iterator[bytes]:
    """Yield random inputs with a deed at ``point``."""
    chooser = random.Random(point)
    first = bytes([POINTS.index(point)])
    for _ in range(count):
        yield first + chooser.randbytes(8)
