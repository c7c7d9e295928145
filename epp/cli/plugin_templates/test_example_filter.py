from pathlib import Path

import pytest

from epp.testing import load_plugin, make_endpoints, make_plugin, make_request, run_filter

ExampleFilter = load_plugin(Path(__file__).with_name("example_filter.py"), "ExampleFilter")


@pytest.mark.parametrize(
    ("longest", "want"),
    [
        pytest.param(0, ["idle"], id="no queue at all"),
        pytest.param(3, ["idle", "short"], id="the limit itself passes"),
        pytest.param(100, ["idle", "short", "long"], id="all pass"),
    ],
)
def test_filter(longest: int, want: list[str]) -> None:
    plugin = make_plugin(ExampleFilter, {"maxWaitingRequests": longest})
    endpoints = make_endpoints(
        {"idle": {}, "short": {"waiting_requests": 3}, "long": {"waiting_requests": 9}}
    )
    assert run_filter(plugin, make_request(), endpoints) == want


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="maxWaitingRequests"):
        make_plugin(ExampleFilter, {"maxWaitingRequests": -1})
