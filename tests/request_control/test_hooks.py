"""The hooks around the choice: their order, their errors, and the effects of their failures."""

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from epp.request_control import (
    REQUEST_HEADERS_TO_SET,
    AdmissionDeniedError,
    Admitter,
    DataProducer,
    EndCause,
    InternalError,
    PreRequest,
    RequestError,
    RequestHeaderProcessor,
    ResponseBodyStart,
    ResponseComplete,
    ResponseHead,
    ResponseHeader,
    ResponseSource,
    ScreenedOutError,
    Screener,
)
from epp.request_control.hedging import Hedging
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    PostSchedule,
    PreSchedule,
    SchedulingResult,
)
from tools.harness.request_control import BODY, Clock, Epp, NotingPlugin, Policies, make_pool

POINTS = {
    "process_request_headers": "RequestHeaderProcessor",
    "prepare": "DataProducer",
    "screen": "Screener",
    "attach": "DataProducer",
    "admit": "Admitter",
    "pre_request": "PreRequest",
    "response_headers": "ResponseHeader",
    "response_body_started": "ResponseBodyStart",
    "response_complete": "ResponseComplete",
}
ORDER = (
    "process_request_headers",
    "prepare",
    "screen",
    "attach",
    "admit",
    "pre_schedule",
    "post_schedule",
    "pre_request",
    "response_headers",
    "response_body_started",
    "response_complete",
)


class EveryHook(
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
    """Implements every extension point around the choice; raises at the given ones."""

    type: ClassVar[str] = "every-hook"

    def __init__(self, name: str, notes: list[str], raises: Mapping[str, BaseException]) -> None:
        self.name = name
        self.notes = notes
        self.raises = raises

    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        self._called("process_request_headers")

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        self._called("prepare")

    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        self._called("screen")
        return endpoints

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        self._called("attach")

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        self._called("admit")

    def pre_schedule(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> None:
        self._called("pre_schedule")

    def post_schedule(
        self, request: LLMRequest, result: SchedulingResult, state: CycleState
    ) -> None:
        self._called("post_schedule")

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        self._called("pre_request")

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        self._called("response_headers")

    def response_body_started(
        self, request: LLMRequest, served_by: Endpoint, state: CycleState
    ) -> None:
        self._called("response_body_started")

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        self._called("response_complete")

    def _called(self, method: str) -> None:
        self.notes.append(f"{self.name} {method}")
        if method in self.raises:
            raise self.raises[method]


def both(notes: list[str], *, first: Mapping[str, BaseException]) -> list[EveryHook]:
    return [EveryHook("first", notes, first), EveryHook("second", notes, {})]


def run_one(epp: Epp) -> None:
    routed = epp.handle()
    routed.response_started(200, {})
    routed.body_began()
    routed.close(EndCause.COMPLETED)
    routed.body_began()  # too late


def test_every_hook_runs_in_the_order_of_the_request_and_of_the_configuration() -> None:
    notes: list[str] = []
    run_one(Epp(make_pool(), plugins=both(notes, first={})))
    assert notes == [f"{name} {method}" for method in ORDER for name in ("first", "second")]


@pytest.mark.parametrize("fault", [RuntimeError("a bug"), SystemExit(3)], ids=["raises", "exits"])
@pytest.mark.parametrize("method", POINTS)
def test_a_hook_that_raises_is_passed_over_and_counted(method: str, fault: BaseException) -> None:
    notes: list[str] = []
    bad, good = both(notes, first={method: fault})
    epp = Epp(make_pool(), plugins=[bad, good])
    with capture_logs():
        run_one(epp)
    assert [note for note in notes if note.startswith("second ")] == [
        f"second {each}" for each in ORDER
    ]
    assert epp.failures(POINTS[method], bad) == epp.total("plugin_failures_total") == 1
    assert epp.total("request_total") == 1
    assert epp.in_flight == epp.director.pipeline.open_requests == 0


@pytest.mark.parametrize("method", POINTS)
def test_a_hook_that_fails_too_often_in_a_row_is_not_called_any_more(method: str) -> None:
    notes: list[str] = []
    bad, good = both(notes, first={method: RuntimeError("a bug")})
    epp = Epp(make_pool(), plugins=[bad, good])
    with capture_logs() as lines:
        for _ in range(5):
            run_one(epp)
    assert notes.count(f"first {method}") == 3  # then it is off, at all of its points
    assert notes.count(f"second {method}") == 5
    assert [line["event"] for line in lines].count(
        "plugin disabled until the next reload of the configuration"
    ) == 1
    notes.clear()
    with capture_logs():
        run_one(epp)
    assert [note for note in notes if note.startswith("first ")] == []
    assert epp.total("request_total") == 6


def test_every_call_is_timed_under_its_extension_point() -> None:
    plugin = EveryHook("all", [], {})
    epp = Epp(make_pool(), plugins=[plugin])
    run_one(epp)
    calls = {point: epp.calls(point, plugin) for point in POINTS.values()}
    assert calls == dict.fromkeys(POINTS.values(), 1) | {"DataProducer": 2}  # prepare and attach


class TeapotError(RequestError):
    status = 418
    code = "Teapot"
    stage = "headers"


@pytest.mark.parametrize(
    ("method", "error", "status", "later"),
    [
        pytest.param(
            "process_request_headers", TeapotError("no"), 418, "prepare", id="a header processor"
        ),
        pytest.param("admit", AdmissionDeniedError("full"), 429, "pre_schedule", id="an admitter"),
        pytest.param(
            "admit", TeapotError("no"), 418, "pre_schedule", id="an admitter with another status"
        ),
    ],
)
def test_a_hook_may_answer_the_request(
    method: str, error: RequestError, status: int, later: str
) -> None:
    notes: list[str] = []
    epp = Epp(make_pool(), plugins=both(notes, first={method: error}))
    with capture_logs() as lines, pytest.raises(type(error)) as raised:
        epp.handle()
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert notes[-1] == f"first {method}"
    assert f"first {later}" not in notes
    assert epp.total("plugin_failures_total") == 0
    assert epp.total("request_error_total") == 1
    assert epp.in_flight == epp.director.pipeline.open_requests == 0
    (line,) = lines
    assert (line["event"], line["status"]) == ("request refused", status)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("status", 200, "status must be a number from 400 to 599, not 200"),
        ("status", 1000, "not 1000"),
        ("status", "429", "not '429'"),
        ("code", None, "code must be printable text, not None"),
        ("stage", 7, "stage must be printable text, not 7"),
        ("drop_reason", "a\r\nb", "drop_reason must be printable text"),
        ("drop_reason", "\udc80", "drop_reason must be printable text"),
    ],
)
def test_an_error_that_no_client_can_be_answered_with_is_a_fault(
    field: str, value: object, problem: str
) -> None:
    class OddError(RequestError):
        pass

    setattr(OddError, field, value)
    error = OddError("no")
    epp = Epp(make_pool(), plugins=both([], first={"admit": error}))
    with capture_logs() as lines, pytest.raises(InternalError) as raised:
        epp.handle()
    assert raised.value.__cause__ is error
    assert [line["event"] for line in lines] == ["request failed inside the EPP", "request refused"]
    assert lines[0]["exc_info"] is error
    (note,) = error.__notes__
    assert problem in note
    assert epp.value("internal_faults_total") == 1
    assert epp.director.pipeline.open_requests == 0


class NamedScreener(Screener):
    """Returns ``choose(endpoints)``."""

    type: ClassVar[str] = "named-screener"

    def __init__(self, name: str, choose: Callable[[Sequence[Endpoint]], object]) -> None:
        self.name = name
        self.choose = choose
        self.seen: list[list[str]] = []

    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        self.seen.append([each.name for each in endpoints])
        return self.choose(endpoints)  # type: ignore[return-value] # wrong values too


class Watcher(Admitter):
    """Records the names of the endpoints of each call."""

    type: ClassVar[str] = "watcher"
    name = "watcher"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        self.seen = [each.name for each in endpoints]


def taking(*positions: int) -> Callable[[Sequence[Endpoint]], list[Endpoint]]:
    return lambda endpoints: [endpoints[position] for position in positions]


def broken(_: Sequence[Endpoint]) -> Iterator[Endpoint]:
    raise LookupError("a bug in a screener")
    yield


@pytest.mark.parametrize(
    ("choices", "kept", "failed"),
    [
        pytest.param([taking(1)], [1], 0, id="one"),
        pytest.param([taking(1, 0)], [0, 1], 0, id="the pool's order stays"),
        pytest.param([taking(0, 1), taking(1)], [1], 0, id="two, intersected"),
        pytest.param([broken, taking(1)], [1], 1, id="one raises"),
        pytest.param([lambda _: None, taking(1)], [1], 1, id="one returns None"),
        pytest.param([lambda _: 5], [0, 1], 1, id="the only one returns nonsense"),
        pytest.param([lambda _: make_pool()[:1], taking(1)], None, 1, id="one makes endpoints up"),
        pytest.param([taking(0), taking(1)], None, 0, id="nothing in common"),
        pytest.param([taking()], None, 0, id="nothing at all"),
    ],
)
def test_screeners_see_the_same_and_their_results_are_intersected(
    choices: list[Callable[[Sequence[Endpoint]], object]], kept: list[int] | None, failed: int
) -> None:
    screeners = [NamedScreener(f"s{n}", choose) for n, choose in enumerate(choices)]
    watcher = Watcher()
    epp = Epp(make_pool(), plugins=[*screeners, watcher])
    names = [each.name for each in epp.endpoints]
    with capture_logs() as lines:
        if kept is None:
            with pytest.raises(
                ScreenedOutError, match=r"screeners 's0'.* all 2 endpoints"
            ) as raised:
                epp.handle()
            assert (raised.value.status, raised.value.stage) == (503, "candidates")
            assert raised.value.drop_reason == lines[-1]["reason"] == "rejected-no-endpoints"
        else:
            assert epp.handle().endpoint.name in [names[position] for position in kept]
            assert watcher.seen == [names[position] for position in kept]
    assert all(screener.seen == [names] for screener in screeners)
    assert epp.total("plugin_failures_total") == failed


class HeaderSetter(RequestHeaderProcessor, PreRequest, ResponseHeader):
    """Sets headers in both directions."""

    type: ClassVar[str] = "header-setter"
    name = "header-setter"

    def __init__(self) -> None:
        self.heads: list[tuple[int, dict[str, str], str]] = []

    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        state.write(REQUEST_HEADERS_TO_SET, {"x-early": "1", "x-secret": None})

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        headers = state.read(REQUEST_HEADERS_TO_SET)
        assert headers is not None
        headers["x-late"] = result.endpoints[0].endpoint.address

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        self.heads.append((response.status, dict(response.headers), served_by.name))
        response.set_headers["x-served-by"] = served_by.name


def test_hooks_set_headers_on_the_request_and_on_the_response() -> None:
    plugin = HeaderSetter()
    routed = Epp(make_pool(), plugins=[plugin]).handle()
    assert routed.decision.request_headers == {
        "x-early": "1",
        "x-secret": None,
        "x-late": "10.0.0.1:8000",
    }
    assert routed.wants_response_headers
    routed.served_by("10.0.0.2:8000")
    assert routed.response_started(503, {"a": "b"}) == {"x-served-by": "default/b"}
    assert plugin.heads == [(503, {"a": "b"}, "default/b")]
    assert routed.status == 503


def test_without_plugins_no_header_is_set_and_none_wanted() -> None:
    routed = Epp(make_pool()).handle()
    assert routed.decision.request_headers == {}
    assert not routed.wants_response_headers
    assert routed.response_started(200) == {}
    assert (routed.status, routed.body) == (200, None)


def test_the_head_of_a_response_that_comes_after_the_end_is_shown_to_nobody() -> None:
    plugin = HeaderSetter()
    routed = Epp(make_pool(), plugins=[plugin]).handle()
    routed.close(EndCause.CLIENT_DISCONNECT)
    assert routed.response_started(200, {}) == {}
    assert plugin.heads == []


class HeadNoter(ResponseHeader):
    """Keeps the heads of responses."""

    type: ClassVar[str] = "head-noter"
    name = "head-noter"

    def __init__(self) -> None:
        self.heads: list[ResponseHead] = []

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        self.heads.append(response)


def test_a_head_says_who_made_the_response_and_whether_it_is_that_of_a_second_try() -> None:
    plugin, clock = HeadNoter(), Clock()
    hedging = Hedging(1.0, lambda has_won: None)
    epp = Epp(make_pool(), plugins=[plugin], clock=clock)
    for source, is_hedged in ((ResponseSource.GATEWAY, False), (ResponseSource.UNKNOWN, True)):
        routed = epp.handle(b'{"model": "llama", "prompt": "hello", "stream": true}')
        routed.response_source = source
        if is_hedged:
            routed.hedge = hedging.begin(5, clock.now, 1)
            routed.hedge.is_won = True
        routed.response_started(200)
        routed.close(EndCause.COMPLETED)
    assert [(head.source, head.is_second_try) for head in plugin.heads] == [
        (ResponseSource.GATEWAY, False),
        (ResponseSource.UNKNOWN, True),
    ]


class HeadSpoiler(ResponseHeader):
    """Replaces the headers to set by something else."""

    type: ClassVar[str] = "head-spoiler"
    name = "head-spoiler"

    def __init__(self, value: object) -> None:
        self._value: Any = value

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        response.set_headers = self._value


@pytest.mark.parametrize("value", [["x-served-by"], None, 5])
def test_headers_to_set_that_are_no_dict_are_the_fault_of_their_plugin_alone(value: object) -> None:
    spoiler = HeadSpoiler(value)
    epp = Epp(make_pool(), plugins=[spoiler, HeaderSetter()])
    routed = epp.handle()
    routed.served_by("10.0.0.2:8000")
    with capture_logs() as lines:
        assert routed.response_started(200, {}) == {"x-served-by": "default/b"}
    assert epp.failures("ResponseHeader", spoiler) == 1
    assert f"set the headers to set to {type(value).__name__}" in str(lines)


class JunkHeaders(PreRequest):
    """Writes a value that is not a mapping of headers."""

    type: ClassVar[str] = "junk-headers"
    name = "junk"

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        junk: dict[str, str | None] = 7  # type: ignore[assignment]
        state.write(REQUEST_HEADERS_TO_SET, junk)


def test_headers_that_are_none_are_their_plugins_fault_and_leave_nothing_reserved() -> None:
    plugin = JunkHeaders()
    epp = Epp(make_pool(), plugins=[plugin], policies=Policies(targets={"llama": "tuned"}))
    for _ in range(2):
        routed = epp.handle(gzip.compress(BODY), {"content-encoding": "gzip"})
        assert dict(routed.decision.request_headers) == {"content-encoding": None}
        routed.close(EndCause.COMPLETED)
    assert epp.in_flight == epp.director.in_flight == 0
    assert epp.failures("PreRequest", plugin) == 2


def test_what_raises_after_the_reservation_gives_it_back_and_notifies_the_plugins() -> None:
    plugin, recorder = NotingPlugin("noting", []), Mock()
    recorder.decided.side_effect = ZeroDivisionError("a bug of ours")
    epp = Epp(make_pool(), plugins=[plugin], recorder=recorder)
    with pytest.raises(InternalError):
        epp.handle()
    assert epp.in_flight == epp.director.in_flight == 0
    assert plugin.ends == [("default/a", EndCause.ERROR)]


class Spoiling(PreRequest):
    """Leaves an invalid result."""

    type: ClassVar[str] = "spoiling"
    name = "spoiling"

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        result.primary = "nobody"


class Returning(PreRequest):
    """Returns what nobody asks for."""

    type: ClassVar[str] = "returning"
    name = "returning"

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        return self.name  # type: ignore[return-value] # as code without types does


def test_what_a_hook_returns_does_not_matter() -> None:
    plugin = Returning()
    epp = Epp(make_pool(), plugins=[plugin])
    epp.handle().close(EndCause.COMPLETED)
    assert epp.failures("PreRequest", plugin) == 0


def test_a_hook_that_spoils_the_decision_is_blamed_and_not_the_next_one() -> None:
    spoiling, noting = Spoiling(), NotingPlugin("noting", [])
    epp = Epp(make_pool(), plugins=[spoiling, noting])
    epp.handle().close(EndCause.COMPLETED)
    assert "noting: pre_request with 1 in flight" in noting.notes
    assert epp.failures("PreRequest", spoiling) == 1
    assert epp.failures("PreRequest", noting) == 0
    assert epp.in_flight == 0


class Renaming(RequestHeaderProcessor):
    """Sets a field of the request to a value of the wrong type."""

    type: ClassVar[str] = "renaming"
    name = "renaming"

    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        request.fairness_id = 7  # type: ignore[assignment]


def test_a_processor_that_breaks_the_request_is_blamed_and_the_request_goes_on() -> None:
    plugin = Renaming()
    epp = Epp(make_pool(), plugins=[plugin])
    routed = epp.handle()
    assert routed.request.fairness_id == "default-flow"
    routed.close(EndCause.COMPLETED)
    assert epp.failures("RequestHeaderProcessor", plugin) == 1


class Inventing(Screener):
    """Returns an unknown endpoint."""

    type: ClassVar[str] = "inventing"
    name = "inventing"

    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        return [make_pool()[0]]


def test_a_screener_that_invents_endpoints_is_blamed_and_what_it_made_up_is_not_seen() -> None:
    plugin = Inventing()
    epp = Epp(make_pool(), plugins=[plugin])
    with pytest.raises(ScreenedOutError):
        epp.handle()
    assert epp.failures("Screener", plugin) == 1
