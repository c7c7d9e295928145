from typing import Any

import pytest

from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.by_label import ByLabelFilter

ENDPOINTS = [
    make_endpoint("gold", labels={"tier": "gold"}),
    make_endpoint("silver", labels={"tier": "silver"}),
    make_endpoint("empty", labels={"tier": ""}),
    make_endpoint("bare"),
]


@pytest.mark.parametrize(
    ("parameters", "want"),
    [
        pytest.param({"validValues": ["gold"]}, ["gold"], id="one value"),
        pytest.param({"validValues": ["silver", "gold"]}, ["gold", "silver"], id="pool order"),
        pytest.param(
            {"validValues": ["gold"], "allowsNoLabel": True}, ["gold", "bare"], id="or no label"
        ),
        pytest.param({"allowsNoLabel": True}, ["bare"], id="no label only"),
        pytest.param(
            {"validValues": [""]}, ["empty", "bare"], id="an empty value is also no label"
        ),
        pytest.param({"validValues": ["lead"]}, [], id="nobody"),
    ],
)
def test_filter(parameters: dict[str, Any], want: list[str]) -> None:
    plugin = make_plugin(ByLabelFilter, {"label": "tier", **parameters})
    assert run_filter(plugin, make_request(), ENDPOINTS) == want


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        pytest.param({"validValues": ["a"]}, "missing required field `label`", id="no label"),
        pytest.param({"label": "", "validValues": ["a"]}, "label is empty", id="an empty label"),
        pytest.param({"label": "tier"}, "nothing could pass", id="no way through"),
        pytest.param({"label": "tier", "validValues": "a"}, "Expected `array`", id="no list"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make_plugin(ByLabelFilter, parameters)


def test_a_profile_picks_among_those_that_have_the_label() -> None:
    plugin = make_plugin(ByLabelFilter, {"label": "tier", "validValues": ["silver", "gold"]})
    profile = make_profile(filters=[plugin])
    assert run_profile(profile, make_request(), ENDPOINTS) == ["gold", "silver"]


def test_a_failure_keeps_requests_from_where_they_must_not_go() -> None:
    assert not ByLabelFilter.fails_open
