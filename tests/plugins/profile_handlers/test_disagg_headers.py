from typing import Any

import pytest

from epp.request_control.plugins import REQUEST_HEADERS_TO_SET
from epp.scheduling import ProfileResult, SchedulingResult, ScoredEndpoint
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.profile_handlers.disagg_headers import DisaggHeadersHandler

PREFILLER, ENCODERS = "x-prefiller-host-port", "x-encoder-hosts-ports"


def result_of(**profiles: list[str]) -> SchedulingResult:
    """Return a result by the addresses that each profile chose."""
    results = {
        name: ProfileResult(
            name, [ScoredEndpoint(make_endpoint(each, address=each), 1.0) for each in addresses]
        )
        for name, addresses in profiles.items()
    }
    return SchedulingResult(results, "decode")


def headers_of(
    result: SchedulingResult,
    sent: dict[str, str] | None = None,
    parameters: dict[str, Any] | None = None,
    earlier: dict[str, str | None] | None = None,
) -> dict[str, str | None] | None:
    state = make_state({} if earlier is None else {REQUEST_HEADERS_TO_SET: earlier})
    plugin = make_plugin(DisaggHeadersHandler, parameters)
    plugin.pre_request(make_request(headers=sent), result, state)
    return state.read(REQUEST_HEADERS_TO_SET)


@pytest.mark.parametrize(
    ("profiles", "want"),
    [
        pytest.param({}, {}, id="decode alone"),
        pytest.param({"prefill": ["[fd00::1]:8000"]}, {PREFILLER: "[fd00::1]:8000"}, id="IPv6"),
        pytest.param({"prefill": ["p1:1", "p2:1"]}, {PREFILLER: "p1:1"}, id="the best prefill"),
        pytest.param({"encode": ["e1:1", "e2:1"]}, {ENCODERS: "e1:1,e2:1"}, id="all encoders"),
        pytest.param({"prefill": [], "encode": []}, {}, id="profiles that failed"),
        pytest.param(
            {"prefill": ["p1:1"], "encode": ["e1:1"]},
            {PREFILLER: "p1:1", ENCODERS: "e1:1"},
            id="both",
        ),
    ],
)
def test_headers(profiles: dict[str, list[str]], want: dict[str, str]) -> None:
    result = result_of(decode=["d:1"], **profiles)
    assert (headers_of(result) or {}) == want
    forged = {PREFILLER: "6.6.6.6:80", ENCODERS: "6.6.6.6:80"}
    assert headers_of(result, forged) == {PREFILLER: None, ENCODERS: None} | want


def test_profiles_of_other_names() -> None:
    parameters = {"prefillProfile": "p", "encodeProfile": "e"}
    result = result_of(decode=["d:1"], p=["p1:1"], e=["e1:1"], prefill=["x:1"], encode=["x:1"])
    assert headers_of(result, None, parameters) == {PREFILLER: "p1:1", ENCODERS: "e1:1"}


def test_what_others_set_stays() -> None:
    result = result_of(decode=["d:1"], prefill=["p1:1"])
    earlier: dict[str, str | None] = {"x-other": "1", ENCODERS: "e1:1"}
    headers = headers_of(result, {ENCODERS: "6.6.6.6:80"}, None, earlier)
    assert headers == {"x-other": "1", ENCODERS: "e1:1", PREFILLER: "p1:1"}


def test_the_state_is_not_written_where_there_is_nothing_to_set() -> None:
    assert headers_of(result_of(decode=["d:1"]), {"x-other": "1"}) is None


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown field `decodeProfile`"):
        make_plugin(DisaggHeadersHandler, {"decodeProfile": "d"})


def test_the_class_is_sound() -> None:
    check(DisaggHeadersHandler)
