from pathlib import Path

import pytest

from epp.testing import load_plugin, make_endpoints, make_plugin, make_request, score_table

ExampleScorer = load_plugin(Path(__file__).with_name("example_scorer.py"), "ExampleScorer")


def test_score() -> None:
    plugin = make_plugin(ExampleScorer, {"scaleRequests": 4})
    endpoints = make_endpoints({"idle": {}, "busy": {"running_requests": 12}})
    # 1 / (1 + 0/4) and 1 / (1 + 12/4)
    assert score_table(plugin, make_request(), endpoints) == {"idle": 1.0, "busy": 0.25}


def test_a_scale_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="scaleRequests"):
        make_plugin(ExampleScorer, {"scaleRequests": 0})
