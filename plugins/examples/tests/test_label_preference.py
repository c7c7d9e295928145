import pytest

from epp.testing import (
    check,
    make_endpoints,
    make_plugin,
    make_profile,
    make_request,
    run_profile,
    score_table,
)
from epp_example_plugins import LabelPreferenceScorer

ENDPOINTS = make_endpoints(
    {
        "dear": {"labels": {"capacity": "on-demand"}},
        "cheap": {"labels": {"capacity": "spot"}},
        "unknown": {},
    }
)
SCORES = {"label": "capacity", "scores": {"spot": 1.0, "on-demand": 0.25}}


def test_the_class_is_in_good_order() -> None:
    check(LabelPreferenceScorer)


def test_score() -> None:
    plugin = make_plugin(LabelPreferenceScorer, SCORES)
    want = {"dear": 0.25, "cheap": 1.0, "unknown": 0.0}
    assert score_table(plugin, make_request(), ENDPOINTS) == want


def test_a_profile_prefers_the_cheap_one() -> None:
    profile = make_profile(scorers=[make_plugin(LabelPreferenceScorer, SCORES)])
    assert run_profile(profile, make_request(), ENDPOINTS)[0] == "cheap"


def test_a_score_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match="<= 1"):
        make_plugin(LabelPreferenceScorer, {"label": "capacity", "scores": {"spot": 2}})
