import pytest

from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.header_based_testing import HeaderBasedTestingFilter

PLUGIN = make_plugin(HeaderBasedTestingFilter)
HEADER = "test-epp-endpoint-selection"
ENDPOINTS = [
    make_endpoint("a0", address="10.0.0.1:8000"),
    make_endpoint("a1", address="10.0.0.1:8001"),
    make_endpoint("b", address="10.0.0.2:8000"),
    make_endpoint("c", address="10.0.0.10:8000"),
    make_endpoint("v6-0", address="[fd00::1]:8000"),
    make_endpoint("v6-1", address="[fd00::1]:8001"),
    make_endpoint("v6-2", address="[FD00::2]:8000"),
]


@pytest.mark.parametrize(
    ("header", "want"),
    [
        pytest.param("10.0.0.1:8001", ["a1"], id="one port of an address"),
        pytest.param("10.0.0.1", ["a0", "a1"], id="every port of an address"),
        pytest.param("10.0.0.1:8001,10.0.0.1:8000", ["a0", "a1"], id="two ports of an address"),
        pytest.param(" 10.0.0.10 ,, 10.0.0.2:8000", ["b", "c"], id="blanks, in the pool's order"),
        pytest.param("10.0.0.2,10.0.0.2:8000,10.0.0.2", ["b"], id="once if listed twice"),
        pytest.param("[fd00::1]:8001", ["v6-1"], id="one port of an IPv6 address"),
        pytest.param("[fd00::1]", ["v6-0", "v6-1"], id="an IPv6 address in brackets"),
        pytest.param("FD00::1", ["v6-0", "v6-1"], id="a bare IPv6 address"),
        pytest.param("fd00::2", ["v6-2"], id="an address that is written in capitals"),
        pytest.param("10.0.0.9,10.0.0.1:9,10.0.0", [], id="no candidate"),
        pytest.param("10.0.0.9,10.0.0.2", ["b"], id="others are ignored"),
        pytest.param("x," * 999 + "10.0.0.2", ["b"], id="the last that is looked at"),
        pytest.param("x," * 1000 + "10.0.0.2", [], id="one after that"),
        pytest.param("", [], id="empty header"),
        pytest.param(" , ", [], id="blank header"),
    ],
)
def test_filter(header: str, want: list[str]) -> None:
    assert run_filter(PLUGIN, make_request(headers={HEADER: header}), ENDPOINTS) == want


def test_nothing_is_kept_without_the_header_or_a_working_filter() -> None:
    assert run_filter(PLUGIN, make_request(), ENDPOINTS) == []
    assert not PLUGIN.fails_open


def test_a_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown field `header`"):
        make_plugin(HeaderBasedTestingFilter, {"header": "x-other"})


def test_a_profile_picks_what_the_header_lists() -> None:
    profile = make_profile(filters=[PLUGIN])
    request = make_request(headers={HEADER: "10.0.0.2"})
    assert run_profile(profile, request, ENDPOINTS) == ["b"]
