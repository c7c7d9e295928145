"""A plan is validated on construction; the error names the field."""

from collections.abc import Callable
from typing import Any

import pytest

from epp.lab.load import Api, ArrivalSpacing, LoadError, LoadPlan, PlanError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"concurrency": None}, "concurrency and rate", id="neither pace"),
        pytest.param({"rate": 1.0, "concurrency": 1}, "concurrency and rate", id="both paces"),
        pytest.param({"requests": None}, "requests and duration", id="no end"),
        pytest.param({"requests": 1, "duration_seconds": 1.0}, "requests and", id="two ends"),
        pytest.param({"concurrency": 0}, "concurrency: 0", id="no client"),
        pytest.param({"concurrency": 1.5}, "whole number", id="half a client"),
        pytest.param({"rate": float("nan")}, "rate: nan", id="rate is not a number"),
        pytest.param({"rate": float("inf")}, "rate: inf", id="infinite rate"),
        pytest.param({"duration_seconds": -1.0}, "duration_seconds: -1", id="negative time"),
        pytest.param({"max_tokens": 0}, "max_tokens: 0", id="no tokens"),
        pytest.param({"timeout_seconds": 0}, "timeout_seconds", id="no time"),
        pytest.param({"abort_share": 1.1}, "abort_share: 1.1", id="share above one"),
        pytest.param({"prompt_chars": 15}, "prompt_chars: 15", id="prompt too short"),
        pytest.param({"prefixes": 2}, "both or neither", id="groups without length"),
        pytest.param({"prefix_chars": 64}, "both or neither", id="length without groups"),
        pytest.param({"prefixes": -1}, "negative", id="negative groups"),
        pytest.param({"prefixes": 2, "prefix_chars": 8}, "prefix_chars: 8", id="short prefix"),
        pytest.param({"prefixes": 2, "prefix_chars": 500}, "prompt_chars", id="no own text"),
        pytest.param({"api": "embeddings"}, "api: 'embeddings'", id="unknown api"),
        pytest.param({"arrivals": "bursty"}, "poisson, constant", id="unknown arrivals"),
        pytest.param({"headers": (("a", "b\r\nc: d"),)}, "headers", id="header with line break"),
        pytest.param({"url": "ftp://host"}, "url", id="other scheme"),
        pytest.param({"url": "http://"}, "url", id="no host"),
        pytest.param({"url": "http://host:99999"}, "url", id="port out of range"),
        pytest.param({"url": "http://host/v1?x=1"}, "query", id="query"),
        pytest.param({"url": "http://host/a b"}, "space", id="space in path"),
    ],
)
def test_a_wrong_field_is_named(
    make_plan: Callable[..., LoadPlan], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        make_plan(**fields)
    assert isinstance(caught.value, LoadError)


def test_an_empty_model_is_refused() -> None:
    with pytest.raises(PlanError, match="model"):
        LoadPlan(url="http://h", model="", concurrency=1, requests=1)


@pytest.mark.parametrize(
    ("url", "api", "path"),
    [
        ("http://h:1", "completions", "/v1/completions"),
        ("http://h:1/", "chat", "/v1/chat/completions"),
        ("http://h:1/v1", "chat", "/v1/chat/completions"),
        ("http://h:1/tenant/v1/", "completions", "/tenant/v1/completions"),
    ],
)
def test_the_path_follows_url_and_api(
    make_plan: Callable[..., LoadPlan], url: str, api: str, path: str
) -> None:
    assert make_plan(url, api=api).path == path


def test_words_become_enums_and_secrets_stay_out_of_the_dict(
    make_plan: Callable[..., LoadPlan],
) -> None:
    plan = make_plan(api="chat", arrivals="constant", headers=(("authorization", "secret"),))
    assert plan.api is Api.CHAT
    assert plan.arrivals is ArrivalSpacing.CONSTANT
    assert "secret" not in str(plan.to_dict())
