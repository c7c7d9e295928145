from typing import Any

import pytest

from epp.scheduling import CycleState, NoEndpointsError
from epp.testing import make_endpoint, make_plugin, make_profile, make_request, run_filter
from epp_plugins.filters.label_selector import LabelSelectorFilter, Params
from epp_plugins.label_selectors import LabelSelector, matcher_of

ENDPOINTS = [
    make_endpoint("decode-a", labels={"role": "decode", "zone": "a"}),
    make_endpoint("decode-b", labels={"role": "decode", "zone": "b"}),
    make_endpoint("prefill-a", labels={"role": "prefill", "zone": "a"}),
    make_endpoint("no-role", labels={"zone": ""}),
    make_endpoint("bare"),
]


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    written = {"key": key, "operator": operator}
    return {"matchExpressions": [written | ({"values": list(values)} if values else {})]}


@pytest.mark.parametrize(
    ("parameters", "want"),
    [
        pytest.param({}, [e.name for e in ENDPOINTS], id="an empty selector keeps all"),
        pytest.param(
            {"matchLabels": {}, "matchExpressions": []},
            [e.name for e in ENDPOINTS],
            id="empty lists keep all",
        ),
        pytest.param(
            {"matchLabels": {"role": "decode"}}, ["decode-a", "decode-b"], id="one match label"
        ),
        pytest.param(
            {"matchLabels": {"role": "decode", "zone": "b"}}, ["decode-b"], id="all match labels"
        ),
        pytest.param(
            {"matchLabels": {"zone": ""}}, ["no-role"], id="an empty value needs the label"
        ),
        pytest.param(
            expression("role", "In", "decode", "prefill"),
            ["decode-a", "decode-b", "prefill-a"],
            id="In needs the label",
        ),
        pytest.param(
            expression("role", "NotIn", "decode"),
            ["prefill-a", "no-role", "bare"],
            id="NotIn matches an absent label",
        ),
        pytest.param(
            expression("zone", "NotIn", ""),
            ["decode-a", "decode-b", "prefill-a", "bare"],
            id="NotIn tells an empty value from an absent label",
        ),
        pytest.param(
            expression("zone", "Exists"),
            ["decode-a", "decode-b", "prefill-a", "no-role"],
            id="Exists takes any value",
        ),
        pytest.param(
            expression("role", "DoesNotExist"),
            ["no-role", "bare"],
            id="DoesNotExist matches an absent label",
        ),
        pytest.param(
            {"matchLabels": {"zone": "a"}, **expression("role", "NotIn", "prefill")},
            ["decode-a"],
            id="labels and expressions must all hold",
        ),
        pytest.param({"matchLabels": {"role": "encode"}}, [], id="nobody matches"),
    ],
)
def test_filter(parameters: dict[str, Any], want: list[str]) -> None:
    selector = make_plugin(LabelSelectorFilter, parameters)
    assert run_filter(selector, make_request(), ENDPOINTS) == want


def test_no_selector_at_all_matches_nothing_and_an_empty_one_everything() -> None:
    for labels in ({}, {"role": "decode"}):
        assert not matcher_of(None)(labels)
        assert matcher_of(LabelSelector())(labels)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        pytest.param(
            expression("role", "Inn", "a"),
            r"operator 'Inn' is none of In, NotIn, Exists, DoesNotExist"
            r" - at `\$\.matchExpressions\[0\]`",
            id="unknown operator",
        ),
        pytest.param(expression("role", "in", "a"), "operator 'in' is none", id="lower case"),
        pytest.param(
            expression("role", "In"), "values is empty, but operator In needs", id="In of nothing"
        ),
        pytest.param(
            expression("role", "NotIn"),
            "values is empty, but operator NotIn",
            id="NotIn of nothing",
        ),
        pytest.param(
            expression("role", "Exists", "a"),
            "values must be left out with operator Exists",
            id="Exists with values",
        ),
        pytest.param(
            expression("role", "DoesNotExist", "a"),
            "values must be left out with operator DoesNotExist",
            id="DoesNotExist with values",
        ),
        pytest.param(expression("", "Exists"), "key '' is no label name", id="empty key"),
        pytest.param(expression("a b", "Exists"), "key 'a b' is no label name", id="bad key"),
        pytest.param(expression("-a", "Exists"), "key '-a' is no label name", id="dash in front"),
        pytest.param(expression("a" * 64, "Exists"), "is no label name", id="key of 64 characters"),
        pytest.param(expression("/role", "Exists"), "what stands before '/'", id="empty prefix"),
        pytest.param(
            expression("LLM/role", "Exists"), "what stands before '/'", id="prefix in upper case"
        ),
        pytest.param(expression("a/b/role", "Exists"), "what stands before '/'", id="two slashes"),
        pytest.param(
            expression(f"{'a.' * 127}/role", "Exists"),
            "what stands before '/'",
            id="prefix too long",
        ),
        pytest.param(
            expression("role", "In", "fine", "no good"),
            r"values 'no good' is no label value.* - at `\$\.matchExpressions\[0\]`",
            id="bad value",
        ),
        pytest.param(
            {"matchLabels": {"a b": "c"}}, "matchLabels key 'a b' is no label name", id="label key"
        ),
        pytest.param(
            {"matchLabels": {"a": "c,d"}},
            "matchLabels value 'c,d' is no label value",
            id="label value",
        ),
        pytest.param({"matchLabel": {}}, "unknown field `matchLabel`", id="unknown field"),
    ],
)
def test_what_kubernetes_refuses_is_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make_plugin(LabelSelectorFilter, parameters)


@pytest.mark.parametrize(
    "key", ["a", "A_b.c-9", "a" * 63, "llm-d.ai/role", "a/b", f"{'a.' * 126}a/b"]
)
def test_every_name_that_kubernetes_takes_is_taken(key: str) -> None:
    selector = make_plugin(LabelSelectorFilter, expression(key, "Exists"))
    endpoint = make_endpoint("a", labels={key: ""})
    assert run_filter(selector, make_request(), [endpoint]) == ["a"]


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="label-selector-filter needs a name"):
        LabelSelectorFilter("", Params())


def test_a_profile_names_the_filter_that_removed_everyone() -> None:
    selector = make_plugin(LabelSelectorFilter, {"matchLabels": {"role": "x"}}, name="only-x")
    result = make_profile(filters=[selector]).run(make_request(), ENDPOINTS[:2], CycleState())
    assert isinstance(result.error, NoEndpointsError)
    assert result.removed == {"only-x": ["decode-a", "decode-b"]}


def test_a_failure_keeps_requests_from_where_they_must_not_go() -> None:
    assert not LabelSelectorFilter.fails_open
