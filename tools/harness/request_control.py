"""A real director on a clock that the test sets, and plugins that record calls or fail."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from epp.flow_control import FlowController
from epp.observability import Metrics, PluginWatch
from epp.outlier_detection import OutlierDetector
from epp.parsing import DEFAULT_MAX_DECOMPRESSED_BYTES, BodyLimits, Parser
from epp.request_control import (
    DataProducer,
    DecisionRecorder,
    Director,
    EndCause,
    OutcomeWatch,
    PendingDecision,
    Pipeline,
    PreRequest,
    RequestPolicies,
    ResponseComplete,
    RoutedRequest,
)
from epp.request_control.force_keys import ForceKeys
from epp.request_control.forced_endpoint import ForcedEndpoints
from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    GuardRails,
    LLMRequest,
    Plugin,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    ShadowProfile,
    WeightedScorer,
)
from epp.testing import make_endpoint
from epp.tracing import Tracer
from epp_plugins.parsers import openai, passthrough
from epp_plugins.pickers import max_score
from epp_plugins.profile_handlers import single_profile
from epp_plugins.scorers import queue_depth

BODY = b'{"model": "llama", "prompt": "hello"}'
HEADERS = {":path": "/v1/completions", ":method": "POST"}


@dataclass
class Clock:
    """A clock that the test sets."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class RefusingFilter(Filter):
    """Removes every endpoint."""

    type: ClassVar[str] = "refusing-filter"

    def __init__(self) -> None:
        self.name = "refusing"

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return []


class FailingHandler(ProfileHandler):
    """Raises the given error, or has a bug."""

    type: ClassVar[str] = "failing-handler"

    def __init__(self, error: Exception | None = None) -> None:
        self.name = "failing"
        self.error = error or ZeroDivisionError("a bug in a handler")

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        return {} if results else profiles

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        raise self.error


class NotingPlugin(DataProducer, PreRequest, ResponseComplete):
    """Records every call; fails in the given methods."""

    type: ClassVar[str] = "noting"

    def __init__(self, name: str, notes: list[str], fails_in: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.notes = notes
        self.fails_in = fails_in
        self.ends: list[tuple[str, EndCause]] = []

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        self._note("prepare")

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        self._note("attach")

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        in_flight = result.endpoints[0].endpoint.load.in_flight
        self._note(f"pre_request with {in_flight} in flight")

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        self.ends.append((served_by.name, cause))
        self._note("response_complete")

    def _note(self, what: str) -> None:
        self.notes.append(f"{self.name}: {what}")
        if what.partition(" ")[0] in self.fails_in:
            raise RuntimeError(f"{self.name} failed in {what}")


@dataclass
class Policies:
    """Objectives and rules that the test sets."""

    priorities: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict)
    rules_all: bool = False
    """Whether a rule renames all models, with the target of ""."""

    def priority_of(self, objective: str) -> int:
        return self.priorities.get(objective, 0)

    def target_of(self, model: str) -> str | None:
        return self.targets.get(model)

    def renames_all(self) -> bool:
        return self.rules_all


@dataclass
class Outcomes:
    """Records the outcomes of requests and of dry runs."""

    noted: list[int] = field(default_factory=list)
    """The status of each refused request, 0 for a routed one."""
    dry_runs: int = 0
    """Number of dry runs to request."""
    judgements: list[tuple[bool, int, str, str]] = field(default_factory=list)
    """For each dry run: whether it shows a regression; status, reason and error of the refusal."""

    def routed(self) -> None:
        self.noted.append(0)

    def refused(self, status: int) -> None:
        self.noted.append(status)

    def take_dry_run(self) -> bool:
        self.dry_runs -= 1
        return self.dry_runs >= 0

    def judged(self, *, is_regression: bool, status: int, reason: str, error: str) -> None:
        self.judgements.append((is_regression, status, reason, error))


def make_parsers() -> list[Parser]:
    """Return the parsers of most configurations."""
    return [
        openai.OpenAiParser("openai", openai.Params()),
        passthrough.PassthroughParser("passthrough", passthrough.Params()),
    ]


@dataclass
class Epp:
    """A director and its parts."""

    endpoints: list[Endpoint]
    clock: Clock = field(default_factory=Clock)
    metrics: Metrics = field(default_factory=Metrics)
    filters: Sequence[Filter] = ()
    handler: ProfileHandler = field(
        default_factory=lambda: single_profile.SingleProfileHandler(
            "single", single_profile.Params()
        )
    )
    plugins: Sequence[Plugin] = ()
    """All other plugins, in the order of the configuration."""
    shadows: Sequence[ShadowProfile] = ()
    policies: RequestPolicies | None = None
    outcomes: OutcomeWatch | None = None
    flow: FlowController | None = None
    outliers: OutlierDetector | None = None
    hedging_budget: float = 0.0
    recorder: DecisionRecorder | None = None
    force_keys: ForceKeys | None = None
    ejected: Sequence[Endpoint] = ()
    """Endpoints that get requests only if no other one suits them."""
    draining: Sequence[Endpoint] = ()
    """Endpoints that get requests only by force."""
    emit_endpoint_scores: bool = False
    follow_subset_hint: bool = True
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    picks: int = 1
    """Maximum number of picked endpoints."""
    tracer: Tracer | None = None
    """Records plugin calls of its requests."""

    def __post_init__(self) -> None:
        self.director = Director(
            pool=lambda: tuple(self.endpoints),
            whole_pool=lambda: (*self.endpoints, *self.ejected),
            find_address=lambda address: next(
                (each for each in self.endpoints if each.address == address), None
            ),
            pipeline=self.pipeline(*self.plugins),
            metrics=self.metrics,
            clock=self.clock,
            policies=self.policies,
            outcomes=self.outcomes,
            flow=self.flow,
            outliers=self.outliers,
            hedging_budget=self.hedging_budget,
            recorder=self.recorder,
            forced=None
            if self.force_keys is None
            else ForcedEndpoints(
                self.force_keys,
                lambda: (*self.endpoints, *self.draining),
                self.metrics,
                now=self.clock,
            ),
            emit_endpoint_scores=self.emit_endpoint_scores,
            follow_subset_hint=self.follow_subset_hint,
            body_limits=BodyLimits(self.max_decompressed_bytes),
        )

    def pipeline(self, *plugins: Plugin) -> Pipeline:
        """Return the pipeline of these plugins, the filters and the handler."""
        recorded = None if self.tracer is None else self.tracer.recorder.timer
        guards = GuardRails(observer=PluginWatch(self.metrics, recorded=recorded), disable_after=3)
        profile = SchedulerProfile(
            name="default",
            filters=self.filters,
            scorers=[WeightedScorer(queue_depth.QueueScorer("queue", queue_depth.Params()))],
            picker=max_score.MaxScorePicker(
                "pick",
                max_score.Params(max_num_of_endpoints=self.picks),
                rng=random.Random(0),
            ),
            guards=guards,
        )
        scheduler = Scheduler(
            self.handler,
            {"default": profile},
            pre_schedule=[each for each in plugins if isinstance(each, PreSchedule)],
            post_schedule=[each for each in plugins if isinstance(each, PostSchedule)],
            guards=guards,
        )
        parsers = [each for each in plugins if isinstance(each, Parser)]
        return Pipeline.of(
            plugins, scheduler, guards, self.shadows, parsers=[*parsers, *make_parsers()]
        )

    @property
    def in_flight(self) -> int:
        """Requests reserved on the endpoints."""
        return sum(e.load.in_flight for e in self.endpoints)

    def handle(
        self,
        body: bytes = BODY,
        headers: Mapping[str, str] | None = None,
        *,
        request_id: str = "r-1",
    ) -> RoutedRequest:
        """Send the director one request that is decided at once."""
        decision = self.ask(body, headers, request_id=request_id)
        assert isinstance(decision, RoutedRequest)
        return decision

    def ask(
        self,
        body: bytes = BODY,
        headers: Mapping[str, str] | None = None,
        *,
        request_id: str = "r-1",
    ) -> RoutedRequest | PendingDecision:
        """Send the director one request, received now."""
        return self.director.handle(
            request_id=request_id,
            headers=HEADERS | dict(headers or {}),
            body=body,
            received_at=self.clock.now,
        )

    def failures(self, point: str, plugin: Plugin) -> float:
        """Return the counted failures of ``plugin`` at an extension point."""
        labels = {"plugin_type": plugin.type, "plugin_name": plugin.name}
        return self.value("plugin_failures_total", extension_point=point, **labels)

    def calls(self, point: str, plugin: Plugin) -> float:
        """Return the timed calls of ``plugin`` at an extension point."""
        labels = {"plugin_type": plugin.type, "plugin_name": plugin.name}
        return self.value("plugin_duration_seconds_count", extension_point=point, **labels)

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a sample; 0 if there is none."""
        return self.metrics.registry.get_sample_value(f"llm_d_epp_{name}", labels) or 0.0

    def total(self, name: str) -> float:
        """Return the sum over all label sets of the sample ``name``."""
        full = f"llm_d_epp_{name}"
        return sum(
            sample.value
            for family in self.metrics.registry.restricted_registry([full]).collect()
            for sample in family.samples
            if sample.name == full
        )


def make_pool() -> list[Endpoint]:
    """Return two endpoints of which ``a`` is idle and chosen."""
    return [
        make_endpoint("default/a", address="10.0.0.1:8000", requested_at=99.5),
        make_endpoint("default/b", address="10.0.0.2:8000", waiting_requests=9, requested_at=99.5),
    ]
