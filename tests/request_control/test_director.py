"""The director: order of hooks, release, metrics and the canonical log line."""

import json
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from epp.request_control import (
    AllFilteredError,
    BadRequestError,
    EndCause,
    InternalError,
    NoCandidatesError,
    PluginFailedError,
    ProfileNotFoundError,
    RequestDroppedError,
    RequestError,
    RequestHeaderProcessor,
)
from epp.request_control.policies import fairness_id
from epp.scheduling import (
    CycleState,
    DroppedError,
    FilterFailedError,
    LLMRequest,
    NoEndpointsError,
    PluginContractError,
    ProfileLoopError,
    SchedulingError,
    UnknownProfileError,
)
from epp.testing import make_endpoint
from tools.harness.request_control import (
    BODY,
    Clock,
    Epp,
    FailingHandler,
    NotingPlugin,
    Policies,
    RefusingFilter,
    make_pool,
)

LABELS = {
    "model_name": "llama",
    "target_model_name": "llama",
    "fairness_id": "default-flow",
    "priority": "0",
}
NO_MODEL = LABELS | {"model_name": "", "target_model_name": ""}


def test_the_least_loaded_endpoint_is_chosen_and_reserved() -> None:
    epp = Epp(make_pool())
    routed = epp.handle()
    assert routed.endpoint.name == "default/a"
    assert routed.request.model == routed.request.target_model == "llama"
    assert routed.request.request_id == "r-1"
    assert [e.load.in_flight for e in epp.endpoints] == [1, 0]
    assert epp.director.in_flight == 1
    routed.close(EndCause.COMPLETED)
    assert epp.in_flight == epp.director.in_flight == 0


def test_a_burst_in_one_step_spreads_because_each_choice_is_reserved() -> None:
    epp = Epp([make_endpoint(f"ns/{i}", address=f"10.0.0.{i}:80") for i in range(4)])
    routed_requests = [epp.handle(request_id=str(i)) for i in range(40)]
    assert [e.load.in_flight for e in epp.endpoints] == [10] * 4
    for routed in routed_requests:
        routed.close(EndCause.COMPLETED)
    assert epp.in_flight == 0


def test_hooks_run_in_order_and_pre_request_sees_the_reservation() -> None:
    notes: list[str] = []
    first, second = NotingPlugin("first", notes), NotingPlugin("second", notes)
    epp = Epp(make_pool(), plugins=[first, second])
    routed = epp.handle()
    assert notes == [
        "first: prepare",
        "second: prepare",
        "first: attach",
        "second: attach",
        "first: pre_request with 1 in flight",
        "second: pre_request with 1 in flight",
    ]
    notes.clear()
    routed.close(EndCause.COMPLETED)
    assert notes == ["first: response_complete", "second: response_complete"]


def test_only_the_first_close_counts() -> None:
    notes: list[str] = []
    plugin = NotingPlugin("p", notes)
    epp = Epp(make_pool(), plugins=[plugin])
    routed = epp.handle()
    routed.close(EndCause.CLIENT_DISCONNECT)
    routed.close(EndCause.COMPLETED)
    assert plugin.ends == [("default/a", EndCause.CLIENT_DISCONNECT)]
    assert epp.in_flight == epp.director.in_flight == 0
    assert epp.value("request_duration_seconds_count", **LABELS) == 1


@pytest.mark.parametrize(
    ("method", "point"),
    [
        pytest.param("prepare", "DataProducer", id="preparing"),
        pytest.param("attach", "DataProducer", id="attaching"),
        pytest.param("pre_request", "PreRequest", id="before the request goes"),
        pytest.param("response_complete", "ResponseComplete", id="at the end"),
    ],
)
def test_a_plugin_that_fails_costs_no_request(method: str, point: str) -> None:
    notes: list[str] = []
    bad, good = NotingPlugin("bad", notes, frozenset({method})), NotingPlugin("good", notes)
    epp = Epp(make_pool(), plugins=[bad, good])
    with capture_logs() as lines:
        epp.handle().close(EndCause.COMPLETED)
    assert [note for note in notes if method in note] == [
        note for name in ("bad", "good") for note in notes if note.startswith(f"{name}: {method}")
    ]
    assert good.ends == [("default/a", EndCause.COMPLETED)]
    assert epp.failures(point, bad) == 1
    assert epp.total("plugin_failures_total") == 1
    assert epp.value("internal_faults_total") == 0
    assert epp.value("request_total", **LABELS) == 1
    assert epp.in_flight == epp.director.in_flight == epp.director.pipeline.open_requests == 0
    assert [line["event"] for line in lines] == [
        "plugin failed, the request goes on without its result",
        "request finished",
    ]


def test_metrics_of_a_request_are_counted() -> None:
    epp = Epp(make_pool())
    routed = epp.handle()
    assert epp.value("request_running", **LABELS) == 1
    assert epp.value("request_duration_seconds_count", **LABELS) == 0
    epp.clock.now += 3
    routed.close(EndCause.COMPLETED)
    assert epp.value("request_total", **LABELS) == 1
    assert epp.value("request_running", **LABELS) == 0
    assert epp.value("request_size_bytes_sum", **LABELS) == len(BODY)
    assert epp.value("request_duration_seconds_sum", **LABELS) == 3
    assert epp.value("scheduler_e2e_duration_seconds_count") == 1
    queue = {"plugin_type": "queue-scorer", "plugin_name": "queue"}
    assert epp.value("plugin_duration_seconds_count", extension_point="Scorer", **queue) == 1


@pytest.mark.parametrize(
    ("epp", "body", "error", "status", "code", "reason", "labels"),
    [
        pytest.param(
            Epp(make_pool()), b"{", BadRequestError, 400, "BadRequest", "", NO_MODEL, id="no JSON"
        ),
        pytest.param(
            Epp(make_pool()),
            b'{"prompt": "x"}',
            BadRequestError,
            400,
            "BadRequest",
            "",
            NO_MODEL,
            id="no model",
        ),
        pytest.param(
            Epp([]),
            BODY,
            NoCandidatesError,
            503,
            "ServiceUnavailable",
            "rejected-no-endpoints",
            LABELS,
            id="an empty pool",
        ),
        pytest.param(
            Epp(make_pool(), filters=[RefusingFilter()]),
            BODY,
            AllFilteredError,
            429,
            "ResourceExhausted",
            "rejected-saturated",
            LABELS,
            id="every endpoint filtered",
        ),
        pytest.param(
            Epp(make_pool(), handler=FailingHandler()),
            BODY,
            InternalError,
            500,
            "Internal",
            "",
            LABELS,
            id="a profile handler with a bug",
        ),
    ],
)
def test_a_refusal_is_counted_and_logged_once(
    *,
    epp: Epp,
    body: bytes,
    error: type[RequestError],
    status: int,
    code: str,
    reason: str,
    labels: dict[str, str],
) -> None:
    with capture_logs() as lines, pytest.raises(error) as raised:
        epp.handle(body)
    assert (raised.value.status, raised.value.code) == (status, code)
    assert raised.value.drop_reason == reason
    assert epp.value("request_error_total", error_code=code, **labels) == 1
    assert epp.total("request_error_total") == 1
    assert epp.total("request_total") == epp.total("request_running") == 0
    assert epp.in_flight == epp.director.in_flight == 0
    refused = [line for line in lines if line["event"] == "request refused"]
    assert len(refused) == 1
    assert refused[0] == {
        "event": "request refused",
        "log_level": "info",
        "request_id": "r-1",
        "model": labels["model_name"],
        "target_model": labels["target_model_name"],
        "status": status,
        "stage": raised.value.stage,
        "reason": reason or code,
        "error": str(raised.value),
        "duration_seconds": 0.0,
        "outcome": "refused",
    }


@pytest.mark.parametrize(("status", "is_proven"), [(200, True), (404, False), (None, False)])
def test_a_response_with_success_vouches_for_the_model(
    status: int | None, *, is_proven: bool
) -> None:
    epp = Epp(make_pool())
    routed = epp.handle()
    if status is not None:
        routed.response_started(status)
    routed.close(EndCause.COMPLETED)
    assert (epp.metrics.names.model("llama") > 0) == is_proven


def test_attempts_name_the_endpoint_in_parts() -> None:
    epp = Epp([make_endpoint("prod/pod-1", address="[fd00::1]:8200")])
    epp.handle()
    epp.handle()
    labels = {"target_model_name": "llama", "endpoint_name": "pod-1", "namespace": "prod"}
    assert epp.value("scheduler_attempts_total", status="success", port="8200", **labels) == 2


def test_attempts_name_the_new_pod_at_an_address_that_passed_to_it() -> None:
    epp = Epp([make_endpoint("prod/old", address="10.0.0.1:80")])
    epp.handle()
    epp.endpoints[:] = [make_endpoint("prod/new", address="10.0.0.1:80")]
    epp.handle()
    labels = {"status": "success", "target_model_name": "llama", "namespace": "prod", "port": "80"}
    assert epp.value("scheduler_attempts_total", endpoint_name="old", **labels) == 1
    assert epp.value("scheduler_attempts_total", endpoint_name="new", **labels) == 1


@pytest.mark.parametrize(
    "epp",
    [
        pytest.param(Epp(make_pool(), filters=[RefusingFilter()]), id="all filtered"),
        pytest.param(Epp(make_pool(), handler=FailingHandler()), id="a profile handler with a bug"),
    ],
)
def test_a_failed_attempt_names_no_endpoint(epp: Epp) -> None:
    with pytest.raises(RequestError):
        epp.handle()
    labels = {"target_model_name": "llama", "endpoint_name": "", "namespace": "", "port": ""}
    assert epp.value("scheduler_attempts_total", status="failure", **labels) == 1
    assert epp.total("scheduler_attempts_total") == 1


def test_one_canonical_line_tells_all_of_a_request() -> None:
    clock = Clock(100.0)
    endpoint = make_endpoint(
        "default/a",
        waiting_requests=2,
        running_requests=5,
        kv_cache_usage=0.123456,
        requested_at=99.5,
    )
    epp = Epp([endpoint], clock=clock)
    with capture_logs() as lines:
        routed = epp.handle(b'{"model":"llama","prompt":"hi","stream":true}')
        routed.response_started(200)
        clock.now = 103.25
        routed.close(EndCause.COMPLETED)
    assert lines == [
        {
            "event": "request finished",
            "log_level": "info",
            "request_id": "r-1",
            "model": "llama",
            "target_model": "llama",
            "endpoint": "default/a",
            "address": "10.0.0.1:8000",
            "waiting_requests": 2,  # before the request itself is counted
            "running_requests": 5,
            "kv_cache_usage": 0.1235,
            "metrics_age_seconds": 0.5,  # asked for at 99.5, decided at 100
            "decision_seconds": 0.0,
            "duration_seconds": 3.25,
            "body_bytes": 45,
            "stream": True,
            "status": 200,
            "outcome": "completed",
        }
    ]


def test_what_a_client_chooses_is_cut_in_the_lines_of_its_requests() -> None:
    served = Epp(make_pool(), policies=Policies())
    full = Epp(make_pool(), filters=[RefusingFilter()], policies=Policies())
    body = json.dumps({"model": "m" * 1000, "prompt": "hi"}).encode()
    headers = {"x-llm-d-inference-fairness-id": "f" * 300}
    with capture_logs() as lines:
        served.handle(body, headers=headers, request_id="r" * 500).close(EndCause.COMPLETED)
        with pytest.raises(AllFilteredError):
            full.handle(body, headers=headers, request_id="r" * 500)
    assert [line["event"] for line in lines] == ["request finished", "request refused"]
    for line in lines:
        assert line["request_id"] == "r" * 256 + "…+244"
        assert line["model"] == line["target_model"] == "m" * 256 + "…+744"
        assert len(line["fairness_id"]) <= len("f" * 256 + "…+44")


@pytest.mark.parametrize(
    ("objective", "tenant", "logged"),
    [
        pytest.param("", "", {}, id="neither"),
        pytest.param("batch", "alice", {"priority": -1, "fairness_id": "alice"}, id="both"),
        pytest.param("batch", "default-flow", {"priority": -1}, id="the flow that all others have"),
        pytest.param("standard", "bob", {"fairness_id": "bob"}, id="of priority 0"),
    ],
)
def test_the_line_tells_priority_and_flow(
    objective: str, tenant: str, logged: dict[str, str | int]
) -> None:
    policies = Policies({"batch": -1, "standard": 0})
    served = Epp(make_pool(), policies=policies)
    full = Epp(make_pool(), filters=[RefusingFilter()], policies=policies)
    headers = {
        "x-llm-d-inference-objective": objective,
        "x-llm-d-inference-fairness-id": tenant,
    }
    with capture_logs() as lines:
        served.handle(headers=headers).close(EndCause.COMPLETED)
        with pytest.raises(AllFilteredError):
            full.handle(headers=headers)
    assert [line["event"] for line in lines] == ["request finished", "request refused"]
    for line in lines:
        flow = {key: line[key] for key in ("priority", "fairness_id") if key in line}
        assert flow == logged


def test_a_line_below_the_level_is_not_made() -> None:
    epp = Epp(make_pool())
    epp.director._live._finished.enabled = False
    with capture_logs() as lines:
        routed = epp.handle()
        routed.request.request_id = None  # type: ignore[assignment] # no line can be made of it
        routed.close(EndCause.COMPLETED)
    assert lines == []
    assert epp.in_flight == 0


def test_an_endpoint_never_scraped_has_no_metrics_age() -> None:
    epp = Epp([make_endpoint()])
    with capture_logs() as lines:
        epp.handle().close(EndCause.ENDED)
    assert lines[0]["metrics_age_seconds"] is None
    assert lines[0]["status"] is None


def test_the_reservation_moves_to_the_endpoint_that_served() -> None:
    notes: list[str] = []
    plugin = NotingPlugin("p", notes)
    epp = Epp(make_pool(), plugins=[plugin])
    routed = epp.handle()
    routed.served_by("10.0.0.2:8000")
    assert [e.load.in_flight for e in epp.endpoints] == [0, 1]
    routed.close(EndCause.COMPLETED)
    assert epp.in_flight == 0
    assert plugin.ends == [("default/b", EndCause.COMPLETED)]


@pytest.mark.parametrize("address", ["10.0.0.1:8000", "192.0.2.1:1", ""])
def test_the_reservation_stays_for_the_chosen_or_an_unknown_endpoint(address: str) -> None:
    epp = Epp(make_pool())
    routed = epp.handle()
    routed.served_by(address)
    assert [e.load.in_flight for e in epp.endpoints] == [1, 0]
    routed.close(EndCause.COMPLETED)
    routed.served_by("10.0.0.2:8000")  # too late
    assert epp.in_flight == 0


def test_an_endpoint_that_left_the_pool_still_gets_its_release() -> None:
    epp = Epp(make_pool())
    routed = epp.handle()
    gone = epp.endpoints.pop(0)
    routed.close(EndCause.COMPLETED)
    assert gone.load.in_flight == 0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({}, "default-flow", id="none"),
        pytest.param({"x-gateway-inference-fairness-id": "old"}, "old", id="the old name"),
        pytest.param(
            {"x-gateway-inference-fairness-id": "old", "x-llm-d-inference-fairness-id": "new"},
            "new",
            id="both names",
        ),
        pytest.param({"x-llm-d-inference-fairness-id": ""}, "default-flow", id="an empty value"),
    ],
)
def test_the_flow_comes_from_the_headers(headers: dict[str, str], expected: str) -> None:
    assert fairness_id(headers) == expected
    epp = Epp(make_pool())
    epp.handle(headers=headers)
    assert epp.value("request_total", **LABELS | {"fairness_id": expected}) == 1


class Naming(RequestHeaderProcessor):
    """Sets the flow of requests without one."""

    type: ClassVar[str] = "naming"

    def __init__(self) -> None:
        self.name = "naming"

    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        request.fairness_id = request.fairness_id or "agent-7"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({}, "agent-7", id="no header"),
        pytest.param({"x-llm-d-inference-fairness-id": "mine"}, "mine", id="a header"),
    ],
)
def test_a_header_processor_may_name_the_flow(headers: dict[str, str], expected: str) -> None:
    epp = Epp(make_pool(), plugins=[Naming()])
    routed = epp.handle(headers=headers)
    assert routed.request.fairness_id == expected
    assert epp.value("request_total", **LABELS | {"fairness_id": expected}) == 1
    epp.endpoints.clear()
    with pytest.raises(RequestError):
        epp.handle(headers=headers)
    labels = LABELS | {"fairness_id": expected, "error_code": "ServiceUnavailable"}
    assert epp.value("request_error_total", **labels) == 1


@pytest.mark.parametrize(
    ("raised", "error", "text"),
    [
        pytest.param(
            NoEndpointsError("decode", 0), AllFilteredError, "'decode'", id="no endpoint left"
        ),
        pytest.param(
            FilterFailedError("decode", 1, {"odd": ["a"]}, ["odd"]),
            PluginFailedError,
            "odd failed and removed a",
            id="a filter that failed closed",
        ),
        pytest.param(
            DroppedError("decode", "tree", "no room for batch jobs"),
            RequestDroppedError,
            "no room for batch jobs",
            id="given up by a filter",
        ),
        pytest.param(
            UnknownProfileError("header 'epp-profile' asks for 'x'"),
            ProfileNotFoundError,
            "asks for 'x'",
            id="a profile that is not there",
        ),
        pytest.param(ProfileLoopError("x"), InternalError, "r-1", id="a broken profile loop"),
        pytest.param(PluginContractError("x"), InternalError, "r-1", id="a broken contract"),
        pytest.param(SchedulingError("x"), InternalError, "r-1", id="something else of its own"),
        pytest.param(ValueError("x"), InternalError, "r-1", id="a bug"),
    ],
)
def test_what_the_profile_handler_raises_has_its_response(
    raised: Exception, error: type[RequestError], text: str
) -> None:
    epp = Epp(make_pool(), handler=FailingHandler(raised))
    with capture_logs() as lines, pytest.raises(error, match=text) as response:
        epp.handle()
    is_fault = error is InternalError
    dropped = error in {AllFilteredError, RequestDroppedError}
    failed = is_fault or error is PluginFailedError
    assert response.value.status == (500 if failed else 429 if dropped else 400)
    assert response.value.drop_reason == ("rejected-saturated" if dropped else "")
    assert epp.value("internal_faults_total") == is_fault
    faults = [line for line in lines if line["event"] == "request failed inside the EPP"]
    assert len(faults) == is_fault
    assert all(fault["exc_info"] and fault["log_level"] == "error" for fault in faults)
    assert epp.in_flight == epp.director.pipeline.open_requests == 0
    labels = {"status": "failure", "target_model_name": "llama", "endpoint_name": ""}
    assert epp.value("scheduler_attempts_total", namespace="", port="", **labels) == 1
