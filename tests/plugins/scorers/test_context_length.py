from collections.abc import Mapping

import pytest

from epp.scheduling import CycleState, Endpoint
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    run_filter,
    run_profile,
    score_table,
)
from epp_plugins.scorers.context_length import ContextLengthAware
from epp_plugins.state_keys import TOKENIZED_PROMPT, TokenizedPrompt

LABEL = "llm-d.ai/context-length-range"
FILTERING = {"enableFiltering": True}


def labelled(ranges: Mapping[str, str | None], label: str = LABEL) -> list[Endpoint]:
    return [
        make_endpoint(name, labels={} if text is None else {label: text})
        for name, text in ranges.items()
    ]


def tokens(count: int) -> CycleState:
    return make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", count)})


@pytest.mark.parametrize(
    ("length", "text", "want"),
    [
        # width 10000: 0.7/(1+1) = 0.35, headroom 1: 0.3; 0.3 + 0.7*0.65
        pytest.param(0, "0-10000", 0.755, id="the lower end"),
        # headroom 5000/10000: 0.3 + 0.7*(0.35 + 0.15)
        pytest.param(5000, "0-10000", 0.65, id="the middle"),
        # headroom 0: 0.3 + 0.7*0.35
        pytest.param(10000, "0-10000", 0.545, id="the upper end"),
        # width 2500: 0.7/1.25 = 0.56, headroom 2000/2500*0.3 = 0.24: 0.3 + 0.7*0.8
        pytest.param(500, "0-2500", 0.86, id="a tighter range is better"),
        pytest.param(7, "7-7", 1.0, id="no width"),
        pytest.param(3500, "0-2500", 0.15, id="1000 above"),  # 0.3/(1+1)
        pytest.param(500, "1000-2000", 0.2, id="500 below"),  # 0.3/(1+0.5)
        pytest.param(500, None, 0.5, id="no label"),
        pytest.param(500, "", 0.0, id="an empty label"),
        pytest.param(500, "0", 0.0, id="one number"),
        pytest.param(500, "0-10-20", 0.0, id="three numbers"),
        pytest.param(500, "-5-10", 0.0, id="a negative number"),
        pytest.param(500, "0-1_000", 0.0, id="an underscore"),
        pytest.param(500, "0-many", 0.0, id="a word"),
        pytest.param(500, "1000-0", 0.0, id="the larger first"),
        pytest.param(0, " 0 - 10000 ", 0.755, id="blanks around the numbers"),
    ],
)
def test_score(length: int, text: str | None, want: float) -> None:
    plugin = make_plugin(ContextLengthAware)
    scores = score_table(plugin, make_request(), labelled({"a": text}), tokens(length))
    assert scores == {"a": pytest.approx(want)}


def test_none_out_of_range_scores_more_than_one_in_range() -> None:
    # 1 token beside a range, and the upper end of the widest there is
    endpoints = labelled({"out": "0-99", "in": f"0-{2**63 - 1}"})
    scores = score_table(make_plugin(ContextLengthAware), make_request(), endpoints, tokens(100))
    assert scores["out"] < 0.3 < scores["in"]


def test_a_request_without_a_prompt_has_length_0() -> None:
    endpoints = labelled({"short": "0-10000", "long": "1000-2000"})
    plugin = make_plugin(ContextLengthAware, FILTERING)
    # 0.3 + 0.7*(0.35 + 0.3); 0.3/(1+1)
    assert score_table(plugin, make_request(), endpoints) == pytest.approx(
        {"short": 0.755, "long": 0.15}
    )
    assert run_filter(plugin, make_request(), endpoints) == ["short"]


MIXED = labelled({"short": "0-2048", "long": "2048-8192", "any": None, "bad": "x-y"})


@pytest.mark.parametrize(
    ("parameters", "length", "want"),
    [
        pytest.param(FILTERING, 2047, ["short", "any"], id="in the lower range"),
        pytest.param(FILTERING, 2048, ["short", "long", "any"], id="both ends are in"),
        pytest.param(FILTERING, 9000, ["any"], id="above all ranges"),
        pytest.param({}, 9000, ["short", "long", "any", "bad"], id="filtering is off by default"),
        pytest.param(
            FILTERING | {"label": "range"},
            9000,
            ["short", "long", "any", "bad"],
            id="nobody has that label",
        ),
    ],
)
def test_filter(parameters: dict[str, object], length: int, want: list[str]) -> None:
    plugin = make_plugin(ContextLengthAware, parameters)
    assert run_filter(plugin, make_request(), MIXED, tokens(length)) == want


def test_another_label_may_hold_the_range() -> None:
    endpoints = labelled({"a": "7-7"}, "range")
    plugin = make_plugin(ContextLengthAware, {"label": "range"})
    assert score_table(plugin, make_request(), endpoints, tokens(7)) == {"a": 1.0}


def test_a_changed_label_counts_from_the_next_request_on() -> None:
    (endpoint,) = endpoints = labelled({"a": "7-7"})
    plugin = make_plugin(ContextLengthAware)
    assert score_table(plugin, make_request(), endpoints, tokens(7)) == {"a": 1.0}
    endpoint.labels = {LABEL: "1007-2000"}
    # 1000 below: 0.3/(1+1)
    assert score_table(plugin, make_request(), endpoints, tokens(7)) == {"a": 0.15}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"label": ""}, "label is empty; leave it out for llm-d.ai/context-length-range"),
        ({"enableFiltering": "yes"}, "Expected `bool`, got `str`"),
        ({"filtering": True}, "unknown field `filtering`"),
    ],
    ids=["no label", "no truth value", "misspelt"],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_plugin(ContextLengthAware, parameters)


def test_a_profile_filters_and_scores_with_one_instance() -> None:
    plugin = make_plugin(ContextLengthAware, FILTERING)
    profile = make_profile(filters=[plugin], scorers=[plugin])
    # 100 tokens: the tight range, then no label at 0.5, then 0.3 + 0.7*(0.7/11 + 0.3*0.999) = 0.554
    endpoints = labelled({"any": None, "wide": "0-100000", "tight": "0-2048", "long": "2048-8192"})
    assert run_profile(profile, make_request(), endpoints, tokens(100)) == ["tight", "wide", "any"]
