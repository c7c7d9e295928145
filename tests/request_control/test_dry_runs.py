"""Refused requests are decided again by the previous pipeline, without side effects."""

import asyncio
import gzip
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from config.graphs import HEAD
from deploy.queueing import QueueingEpp
from structlog.testing import capture_logs

from epp.building import make_builder
from epp.config import load_text
from epp.flow_control import SaturationDetector, SheddingAdmission
from epp.parsing import BodyLimits
from epp.parsing.plugins import HttpCall, ParseError, Parser
from epp.request_control import (
    PRODUCER_FAILURES,
    AdmissionDeniedError,
    Admitter,
    PendingDecision,
    RequestError,
    RequestHeaderProcessor,
    Screener,
)
from epp.request_control.dry_runs import DryRuns
from epp.request_control.errors import AllFilteredError, HeldBytesError, OutsideSubsetError
from epp.request_control.policies import NoPolicies
from epp.request_control.prepared_request import RawRequest
from epp.scheduling import (
    CycleState,
    DroppedError,
    Endpoint,
    Filter,
    GuardRails,
    LLMRequest,
    NullObserver,
    Plugin,
    PostSchedule,
    SchedulingResult,
    described,
)
from request_control.producers import Async, Sync
from tools.harness.request_control import (
    BODY,
    HEADERS,
    Epp,
    FailingHandler,
    NotingPlugin,
    Outcomes,
    Policies,
    RefusingFilter,
    make_pool,
)


class Only(Filter):
    """Keeps the endpoints of one name, for requests to one model."""

    type: ClassVar[str] = "only"

    def __init__(self, name: str, model: str = "llama") -> None:
        self.name = name
        self.model = model
        self.models: list[str] = []

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        self.models.append(request.target_model)
        return [e for e in endpoints if e.name == self.name and request.target_model == self.model]


class Dropping(Filter):
    """Drops every request."""

    type: ClassVar[str] = "dropping"
    name = "dropping"

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        raise DroppedError("default", self.name, "no capacity for its kind")


class Refuser(RequestHeaderProcessor, Screener, Admitter):
    """Refuses requests at one of its extension points, with one error."""

    type: ClassVar[str] = "refuser"
    name = "refuser"

    def __init__(self, point: str, error: RequestError | None = None) -> None:
        self.point = point
        self.error = error or AdmissionDeniedError("denied")

    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        if self.point == "headers":
            raise self.error

    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        return [] if self.point == "screen" else endpoints

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        if self.point == "admit":
            raise self.error


class Unreading(Parser):
    """Refuses every body, or has a bug."""

    type: ClassVar[str] = "unreading"
    name = "unreading"
    claims: ClassVar[tuple[str, ...]] = ("/v1/completions",)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def parse(self, call: HttpCall) -> LLMRequest:
        raise self.error


class UnauthorizedError(RequestError):
    """An error of a plugin."""

    status = 401
    code = "Unauthorized"


class GoneError(RequestError):
    """An error of a plugin."""

    status = 504
    code = "GatewayTimeout"


def reloaded(
    new: Sequence[Plugin] = (), old: Sequence[Plugin] = (), *, dry_runs: int = 100, **fields: Any
) -> tuple[Epp, Outcomes]:
    """Return a director after a reload from plugins to others; both may be filters, too."""
    outcomes = Outcomes(dry_runs=dry_runs)
    epp = make(new, outcomes=outcomes, **fields)
    before = make(old)
    epp.director.previous_pipeline = before.pipeline(*before.plugins)
    return epp, outcomes


def make(plugins: Sequence[Plugin], **fields: Any) -> Epp:
    filters = [each for each in plugins if isinstance(each, Filter)]
    others = [each for each in plugins if not isinstance(each, Filter)]
    return Epp(**{"endpoints": make_pool(), **fields}, filters=filters, plugins=others)


def refused(epp: Epp, body: bytes = BODY, headers: Mapping[str, str] | None = None) -> RequestError:
    with capture_logs(), pytest.raises(RequestError) as caught:
        epp.handle(body, headers)
    return caught.value


@pytest.mark.parametrize(
    ("new", "status", "reason"),
    [
        pytest.param(RefusingFilter(), 429, "rejected-saturated", id="filters"),
        pytest.param(Dropping(), 429, "rejected-saturated", id="a filter that drops"),
        pytest.param(Refuser("screen"), 503, "rejected-no-endpoints", id="a screener"),
        pytest.param(Refuser("admit"), 429, "rejected-saturated", id="an admitter"),
        pytest.param(Refuser("headers", UnauthorizedError()), 401, "Unauthorized", id="its error"),
        pytest.param(Unreading(ParseError("no")), 400, "BadRequest", id="a parser"),
        pytest.param(Unreading(KeyError("no")), 500, "Internal", id="a parser with a bug"),
    ],
)
def test_refusal_is_a_regression_if_the_previous_pipeline_would_route(
    new: Plugin, status: int, reason: str
) -> None:
    epp, outcomes = reloaded([new])
    error = refused(epp)
    assert outcomes.noted == [status]
    assert outcomes.judgements == [(True, status, reason, described(error))]


def test_fault_of_a_profile_handler_is_a_regression() -> None:
    epp, outcomes = reloaded(handler=FailingHandler())
    assert refused(epp).status == 500
    assert [each[:2] for each in outcomes.judgements] == [(True, 500)]


@pytest.mark.parametrize(
    "old",
    [
        pytest.param([RefusingFilter()], id="its filters"),
        pytest.param([Refuser("screen")], id="a screener"),
        pytest.param([Refuser("admit")], id="an admitter"),
        pytest.param([Refuser("headers")], id="a header processor"),
        pytest.param([Unreading(ParseError("no"))], id="its parser"),
        pytest.param([Unreading(KeyError("no"))], id="its parser's bug"),
    ],
)
def test_refusal_by_both_is_no_regression(old: Sequence[Plugin]) -> None:
    epp, outcomes = reloaded([RefusingFilter()], old)
    refused(epp)
    assert [each[0] for each in outcomes.judgements] == [False]


def test_fault_of_the_previous_handler_is_no_regression() -> None:
    epp, outcomes = reloaded([RefusingFilter()])
    before = Epp(make_pool(), handler=FailingHandler())
    epp.director.previous_pipeline = before.pipeline()
    refused(epp)
    assert [each[0] for each in outcomes.judgements] == [False]


def test_fault_of_a_client_is_no_regression() -> None:
    epp, outcomes = reloaded()
    assert refused(epp, b"{").status == 400
    assert [each[0] for each in outcomes.judgements] == [False]


def test_routed_request_is_not_decided_again() -> None:
    notes: list[str] = []
    epp, outcomes = reloaded(old=[NotingPlugin("old", notes)])
    epp.handle()
    assert (outcomes.noted, outcomes.dry_runs, notes) == ([0], 100, [])


class Remembering(PostSchedule):
    """Records its calls."""

    type: ClassVar[str] = "remembering"
    name = "remembering"

    def __init__(self) -> None:
        self.called = False

    def post_schedule(
        self, request: LLMRequest, result: SchedulingResult, state: CycleState
    ) -> None:
        self.called = True


def test_dry_run_calls_no_hook_after_the_choice_and_reserves_nothing() -> None:
    notes: list[str] = []
    hook = Remembering()
    epp, outcomes = reloaded([RefusingFilter()], [NotingPlugin("old", notes), hook])
    refused(epp)
    assert [each[0] for each in outcomes.judgements] == [True]
    assert notes == ["old: prepare", "old: attach"]
    assert not hook.called
    assert epp.in_flight == epp.director.in_flight == 0
    assert epp.value("request_total") == 0
    assert epp.total("request_error_total") == 1
    previous = epp.director.previous_pipeline
    assert previous is not None
    assert previous.open_requests == 0


def test_hook_is_called_by_a_real_run() -> None:
    hook = Remembering()
    make([hook]).handle()
    assert hook.called


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"dry_runs": 0}, id="none is wanted"),
        pytest.param({"endpoints": []}, id="the pool is empty"),
        pytest.param(
            {"new": [Refuser("headers", HeldBytesError("no memory"))]}, id="a limit is reached"
        ),
        pytest.param({"new": [], "headers": {"prefer": "if-available"}}, id="nothing is cached"),
        pytest.param({"old": [Async("a")]}, id="an asynchronous producer is needed"),
    ],
)
def test_what_says_nothing_about_the_configuration_is_not_judged(fields: dict[str, Any]) -> None:
    headers = fields.pop("headers", None)
    epp, outcomes = reloaded(**{"new": [RefusingFilter()], **fields})
    refused(epp, headers=headers)
    assert outcomes.judgements == []


def test_asynchronous_producer_that_does_not_apply_is_no_obstacle() -> None:
    epp, outcomes = reloaded([RefusingFilter()], [Async("a", applies=False), Sync("b", "a")])
    refused(epp)
    assert [each[0] for each in outcomes.judgements] == [True]


def test_nothing_is_kept_or_judged_without_a_previous_pipeline() -> None:
    epp, outcomes = reloaded([RefusingFilter()])
    epp.director.previous_pipeline = None
    refused(epp)
    assert (outcomes.judgements, outcomes.dry_runs) == ([], 100)


class Detector(SaturationDetector):
    """Returns one saturation."""

    type: ClassVar[str] = "detector"
    name = "detector"

    def __init__(self, value: float) -> None:
        self.value = value

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return self.value


@pytest.mark.parametrize(("before", "is_regression"), [(0.5, True), (1.5, False)])
def test_shedding_is_a_regression_unless_the_pool_was_full_before_too(
    before: float, *, is_regression: bool
) -> None:
    epp, outcomes = reloaded(policies=Policies({"batch": -1}))
    previous = epp.director.previous_pipeline
    assert previous is not None
    for pipeline, saturation in ((epp.director.pipeline, 1.0), (previous, before)):
        pipeline.admission = SheddingAdmission(
            Detector(saturation), GuardRails(observer=NullObserver())
        )
    refused(epp, headers={"x-llm-d-inference-objective": "batch"})
    assert [each[0] for each in outcomes.judgements] == [is_regression]


def test_dry_run_has_the_model_that_the_policies_chose_and_asks_them_once() -> None:
    asked: list[str] = []

    class Counting(Policies):
        def target_of(self, model: str) -> str | None:
            asked.append(model)
            return super().target_of(model)

    only = Only("default/a", "llama-v2")
    epp, outcomes = reloaded(
        [RefusingFilter()], [only], policies=Counting(targets={"llama": "llama-v2"})
    )
    refused(epp)
    assert [each[0] for each in outcomes.judgements] == [True]
    assert (asked, only.models) == (["llama"], ["llama-v2"])


def test_compressed_body_is_decoded_in_the_dry_run_too() -> None:
    only = Only("default/a")
    epp, outcomes = reloaded([RefusingFilter()], [only])
    refused(epp, gzip.compress(BODY), {"content-encoding": "gzip"})
    assert [each[0] for each in outcomes.judgements] == [True]
    assert only.models == ["llama"]


def make_dry_runs(outcomes: Outcomes, *old: Plugin, follow_subset_hint: bool = True) -> DryRuns:
    """Return the dry runs of a pool of two endpoints, of which the second one is ejected."""
    pool = make_pool()
    dry_runs = DryRuns(
        outcomes,
        policies=NoPolicies(),
        pool=lambda: pool[:1],
        whole_pool=lambda: pool,
        body_limits=BodyLimits(),
        follow_subset_hint=follow_subset_hint,
    )
    dry_runs.pipeline = make(old).pipeline()
    return dry_runs


@pytest.mark.parametrize(
    ("kept", "subset", "follow_subset_hint", "is_regression"),
    [
        pytest.param("default/a", None, True, True, id="in the pool"),
        pytest.param("default/b", None, True, True, id="ejected, and the only one that fits"),
        pytest.param("default/c", None, True, False, id="nowhere"),
        pytest.param("default/a", ["10.0.0.1:8000"], True, True, id="in the subset"),
        pytest.param("default/b", ["10.0.0.2:8000"], True, True, id="ejected, in the subset"),
        pytest.param("default/a", ["10.0.0.9:8000"], True, False, id="subset of no endpoint"),
        pytest.param("default/a", ["10.0.0.9:8000"], False, True, id="subset that is ignored"),
    ],
)
def test_dry_run_has_the_endpoints_of_a_real_run(
    kept: str, subset: list[str] | None, *, follow_subset_hint: bool, is_regression: bool
) -> None:
    outcomes = Outcomes(dry_runs=1)
    dry_runs = make_dry_runs(outcomes, Only(kept), follow_subset_hint=follow_subset_hint)
    refusal = OutsideSubsetError("none") if subset else AllFilteredError("none")
    dry_runs.judge(RawRequest("r", HEADERS, BODY, None, subset), refusal)
    assert [each[0] for each in outcomes.judgements] == [is_regression]


class UnprintableError(AdmissionDeniedError):
    """Has a bug in its text."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_error_without_a_text_is_judged_too() -> None:
    outcomes = Outcomes(dry_runs=1)
    raw = RawRequest("r", HEADERS, BODY, None, None)
    make_dry_runs(outcomes).judge(raw, UnprintableError())
    assert [each[0] for each in outcomes.judgements] == [True]


class NeedsProducers(Admitter):
    """Refuses requests whose producers have failed."""

    type: ClassVar[str] = "needs-producers"
    name = "needs-producers"

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        if failures := state.read(PRODUCER_FAILURES):
            raise GoneError(f"{failures[0].producer}: {failures[0].reason}")


@pytest.mark.looptime
async def test_refusal_after_a_producer_that_hangs_is_an_own_failure_and_a_regression() -> None:
    epp, outcomes = reloaded([Async("slow", seconds=999, limit=0.4), NeedsProducers()])
    pending = epp.ask()
    assert isinstance(pending, PendingDecision)
    settled = asyncio.Event()
    pending.then(lambda _: settled.set())
    with capture_logs():
        await settled.wait()
    assert outcomes.noted == [504]
    assert outcomes.judgements == [(True, 504, "GatewayTimeout", "GoneError: slow: timeout")]


QUEUE = HEAD + "featureGates: [flowControl]\nplugins: [{type: queue-scorer}%s]\n%s"
FILTER = (
    ", {type: label-selector-filter, name: of-zone, parameters: {matchLabels: {zone: x}}}",
    "schedulingProfiles: [{name: default, plugins: [{pluginRef: of-zone}]}]\n",
)
REFUSE = "extensions: {flowControl: {whenFiltered: refuse}}\n"


@pytest.fixture
def queueing(request: pytest.FixtureRequest) -> Callable[[Outcomes], QueueingEpp]:
    """Director under flow control after a reload from no filters to a given configuration."""
    builder = make_builder()
    texts = QUEUE % ("", ""), getattr(request, "param", QUEUE % FILTER)
    before, after = [builder.build(load_text(text, "f")) for text in texts]

    def make_it(outcomes: Outcomes) -> QueueingEpp:
        epp = QueueingEpp(before, {"a": {}}, outcomes=outcomes)
        epp.director.previous_pipeline = epp.reload(after)
        return epp

    return make_it


@pytest.mark.looptime
async def test_request_that_filters_hold_is_judged_once_it_hangs(
    queueing: Callable[[Outcomes], QueueingEpp],
) -> None:
    outcomes = Outcomes(dry_runs=100)
    epp = queueing(outcomes)

    async def retried(seconds: float) -> list[tuple[bool, int]]:
        await asyncio.sleep(seconds)
        epp.flow.wake()
        await asyncio.sleep(0.1)
        return [each[:2] for each in outcomes.judgements]

    epp.ask("r")
    assert await retried(1) == []
    assert await retried(4) == [(True, 429)]
    assert await retried(1) == [(True, 429)]  # once per request
    assert (epp.waiting, epp.refused) == (1, {})
    await asyncio.sleep(60)
    assert epp.refused["r"].drop_reason == "rejected-ttl-expired"
    assert len(outcomes.judgements) == 1


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("queueing", "ttl_ms", "judgements"),
    [
        pytest.param(QUEUE % FILTER + REFUSE, "", [True], id="its filters refuse"),
        pytest.param(QUEUE % FILTER, "1000", [], id="its own time to live is over"),
        pytest.param(QUEUE % ("", ""), "soon", [], id="its time to live is invalid"),
    ],
    indirect=["queueing"],
)
async def test_wait_in_flow_control_is_no_regression_but_its_filters_are(
    queueing: Callable[[Outcomes], QueueingEpp], ttl_ms: str, judgements: list[bool]
) -> None:
    outcomes = Outcomes(dry_runs=100)
    epp = queueing(outcomes)
    with capture_logs():
        try:
            epp.ask("r", ttl_ms=ttl_ms)
        except RequestError as error:
            epp.refused["r"] = error
        await asyncio.sleep(2)
    assert "r" in epp.refused
    assert [each[0] for each in outcomes.judgements] == judgements
