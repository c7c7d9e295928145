"""Objectives and model rewrites, by clients' headers and the operator's objects."""

import json
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from epp.request_control import BadRequestError, EndCause, RequestError
from epp.request_control.plugins import RequestHeaderProcessor
from epp.scheduling import CycleState, LLMRequest, bounded_id
from tools.harness.request_control import (
    BODY,
    Epp,
    FailingHandler,
    Outcomes,
    Policies,
    RefusingFilter,
    make_pool,
)

POLICIES = Policies(
    priorities={"batch": -5, "chat": 7}, targets={"llama": "llama-v2", "fixed": "fixed"}
)
NEW, OLD = "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"


@pytest.mark.parametrize(
    ("headers", "priority"),
    [
        pytest.param({}, 0, id="none"),
        pytest.param({"x-llm-d-inference-objective": "batch"}, -5, id="sheddable"),
        pytest.param({"x-gateway-inference-objective": "chat"}, 7, id="the deprecated name"),
        pytest.param(
            {"x-gateway-inference-objective": "chat", "x-llm-d-inference-objective": "batch"},
            -5,
            id="both names",
        ),
        pytest.param({"x-llm-d-inference-objective": "unknown"}, 0, id="an unknown objective"),
        pytest.param({"x-llm-d-inference-objective": ""}, 0, id="an empty value"),
    ],
)
def test_the_objective_decides_the_priority(headers: dict[str, str], priority: int) -> None:
    epp = Epp(make_pool(), policies=POLICIES)
    assert epp.handle(headers=headers).request.priority == priority
    labels = {"model_name": "llama", "target_model_name": "llama-v2", "fairness_id": "default-flow"}
    assert epp.value("request_total", priority=str(priority), **labels) == 1


def test_without_objects_every_priority_is_the_default() -> None:
    routed = Epp(make_pool()).handle(headers={"x-llm-d-inference-objective": "chat"})
    assert routed.request.priority == 0


@pytest.mark.parametrize(
    ("model", "headers", "target"),
    [
        pytest.param("other", {}, "other", id="no rule"),
        pytest.param("llama", {}, "llama-v2", id="a rule"),
        pytest.param("other", {NEW: "asked"}, "asked", id="a header"),
        pytest.param("other", {OLD: "asked"}, "asked", id="the deprecated header"),
        pytest.param("other", {OLD: "old", NEW: "new"}, "new", id="both headers"),
        pytest.param("llama", {NEW: "asked"}, "llama-v2", id="a rule goes before a header"),
        pytest.param("fixed", {NEW: "asked"}, "fixed", id="a rule that keeps the model does too"),
        pytest.param("other", {NEW: "other"}, "other", id="a header that keeps the model"),
        pytest.param("other", {NEW: ""}, "other", id="an empty header"),
    ],
)
def test_the_model_sent_on_is_the_target(model: str, headers: dict[str, str], target: str) -> None:
    epp = Epp(make_pool(), policies=POLICIES)
    body = json.dumps({"prompt": "hi", "model": model}).encode()
    with capture_logs() as lines:
        routed = epp.handle(body, headers)
        routed.close(EndCause.COMPLETED)
    assert (routed.request.model, routed.request.target_model) == (model, target)
    assert (lines[-1]["model"], lines[-1]["target_model"]) == (model, target)
    if target == model:
        assert routed.body is None  # the bytes that came go on
    else:
        assert routed.body is not None
        assert json.loads(routed.body) == {"prompt": "hi", "model": target}


@pytest.mark.parametrize("body", [b'{"prompt":"hi"}', b'{"prompt":"hi","model":null}'])
@pytest.mark.parametrize("header", [NEW, OLD])
def test_a_header_may_name_the_model_that_the_body_leaves_out(body: bytes, header: str) -> None:
    routed = Epp(make_pool(), policies=POLICIES).handle(body, {header: "asked"})
    assert (routed.request.model, routed.request.target_model) == ("", "asked")
    assert routed.body is not None
    assert json.loads(routed.body) == {"prompt": "hi", "model": "asked"}


@pytest.mark.parametrize("body", [b'{"prompt":"hi"}', b'{"prompt":"hi","model":""}'])
def test_a_rule_for_all_models_names_that_of_a_body_that_names_none(body: bytes) -> None:
    everything = Policies(targets={"": "ruled"}, rules_all=True)
    routed = Epp(make_pool(), policies=everything).handle(body)
    assert (routed.request.model, routed.request.target_model) == ("", "ruled")
    assert routed.body is not None
    assert json.loads(routed.body) == {"prompt": "hi", "model": "ruled"}


@pytest.mark.parametrize("model", ["1", "[]", "{}", "false", "0"])
def test_a_model_that_is_no_name_is_refused_whatever_a_header_says(model: str) -> None:
    body = b'{"prompt":"hi","model":%b}' % model.encode()
    with capture_logs(), pytest.raises(BadRequestError, match="model not found"):
        Epp(make_pool()).handle(body, {NEW: "asked"})


def test_a_request_without_a_model_api_is_not_rewritten() -> None:
    routed = Epp(make_pool()).handle(b"", {":path": "/health", NEW: "asked"})
    assert routed.body is None
    assert routed.request.target_model == ""


FAIRNESS, OLD_FAIRNESS = "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"
LONG = "tenant-" + "x" * 50_000


@pytest.mark.parametrize(
    ("headers", "flow"),
    [
        pytest.param({}, "default-flow", id="none"),
        pytest.param({FAIRNESS: ""}, "default-flow", id="an empty one"),
        pytest.param({OLD_FAIRNESS: "b"}, "b", id="the deprecated name"),
        pytest.param({FAIRNESS: "a", OLD_FAIRNESS: "b"}, "a", id="both names"),
        pytest.param({FAIRNESS: "x" * 64}, "x" * 64, id="64 bytes"),
        pytest.param({FAIRNESS: LONG}, bounded_id(LONG), id="50 KB"),
        pytest.param({OLD_FAIRNESS: LONG}, bounded_id(LONG), id="50 KB by the deprecated name"),
    ],
)
def test_a_flow_has_an_id_of_64_bytes_at_most(headers: dict[str, str], flow: str) -> None:
    assert Epp(make_pool()).handle(headers=headers).request.fairness_id == flow
    assert len(flow) <= 64
    epp = Epp([])
    with capture_logs(), pytest.raises(RequestError, match="no endpoint"):
        epp.handle(headers=headers)
    labels = {"model_name": "llama", "target_model_name": "llama", "priority": "0"}
    common = {"fairness_id": flow, "error_code": "ServiceUnavailable"}
    assert epp.value("request_error_total", **labels, **common) == 1, "a refused one, too"


def test_so_it_has_if_a_plugin_says_to_which_it_belongs() -> None:
    class Naming(RequestHeaderProcessor):
        type: ClassVar[str] = "naming"

        def __init__(self) -> None:
            self.name = "naming"

        def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
            request.fairness_id = LONG

    epp = Epp(make_pool(), plugins=[Naming()])
    assert epp.handle().request.fairness_id == bounded_id(LONG)


def test_a_refused_request_is_counted_under_both_models() -> None:
    epp = Epp([], policies=POLICIES)
    with capture_logs(), pytest.raises(RequestError, match="no endpoint"):
        epp.handle(headers={"x-llm-d-inference-objective": "chat"})
    labels = {"model_name": "llama", "target_model_name": "llama-v2", "priority": "7"}
    common = {"fairness_id": "default-flow", "error_code": "ServiceUnavailable"}
    assert epp.value("request_error_total", **labels, **common) == 1


def test_the_watch_is_notified_of_a_decision() -> None:
    watch = Outcomes()
    Epp(make_pool(), outcomes=watch).handle()
    assert watch.noted == [0]


@pytest.mark.parametrize(
    ("make", "body", "status"),
    [
        pytest.param(partial(Epp, make_pool()), b"{", 400, id="the client's fault"),
        pytest.param(partial(Epp, make_pool(), filters=[RefusingFilter()]), BODY, 429, id="filter"),
        pytest.param(partial(Epp, []), BODY, 503, id="an empty pool"),
        pytest.param(partial(Epp, make_pool(), handler=FailingHandler()), BODY, 500, id="bug"),
    ],
)
def test_the_watch_gets_the_status_of_a_refusal(
    make: Callable[..., Epp], body: bytes, status: int
) -> None:
    watch = Outcomes()
    epp = make(outcomes=watch)
    with capture_logs(), pytest.raises(RequestError):
        epp.handle(body)
    assert watch.noted == [status]
