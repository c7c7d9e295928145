from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from epp.scheduling import (
    Filter,
    NoEndpointsError,
    ProfileLoopError,
    Scheduler,
    SchedulingError,
    UnknownProfileError,
)
from epp.testing import make_endpoint, make_plugin, make_profile, make_request
from epp_plugins.filters.by_label import ByLabelFilter
from epp_plugins.profile_handlers.header_profile import HeaderProfileHandler


def scheduler(
    *names: str,
    parameters: Mapping[str, Any] | None = None,
    filters: Sequence[Filter] = (),
) -> Scheduler:
    handler = make_plugin(HeaderProfileHandler, parameters, name="by-header")
    return Scheduler(handler, {n: make_profile(name=n, filters=filters) for n in names})


@pytest.mark.parametrize(
    ("parameters", "headers", "want"),
    [
        pytest.param({}, {"epp-profile": "prefill"}, "prefill", id="the header chooses"),
        pytest.param({}, {"epp-profile": "  encode "}, "encode", id="blanks around it are nothing"),
        pytest.param({}, {}, "decode", id="without the header the default"),
        pytest.param({}, {"epp-profile": " "}, "decode", id="a blank header is none"),
        pytest.param({"defaultProfile": "prefill"}, {}, "prefill", id="another default"),
        pytest.param(
            {"headerName": "X-Stage"},
            {"x-stage": "encode", "epp-profile": "prefill"},
            "encode",
            id="another header",
        ),
    ],
)
def test_profile(parameters: dict[str, Any], headers: dict[str, str], want: str) -> None:
    run = scheduler("encode", "prefill", "decode", parameters=parameters)
    result = run.schedule(make_request(headers=headers), [make_endpoint("a")])
    assert result.primary == want
    assert list(result.profiles) == [want]
    assert [s.endpoint.name for s in result.endpoints] == ["a"]


@pytest.mark.parametrize(
    "headers", [{}, {"epp-profile": "decode"}], ids=["no header", "a header for another"]
)
def test_the_only_profile_always_runs(headers: dict[str, str]) -> None:
    result = scheduler("sole").schedule(make_request(headers=headers), [make_endpoint()])
    assert result.primary == "sole"


@pytest.mark.parametrize(
    ("headers", "kind", "error"),
    [
        pytest.param(
            {"epp-profile": "Decode"},
            UnknownProfileError,
            "header 'EPP-Profile' asks for profile 'Decode'; there are: 'encode', 'prefill'",
            id="by the header: the client's mistake",
        ),
        pytest.param(
            {},
            ProfileLoopError,
            "defaultProfile is 'decode'; configured: 'encode', 'prefill'",
            id="by default: the operator's",
        ),
    ],
)
def test_a_profile_that_does_not_exist_is_refused_by_name(
    headers: dict[str, str], kind: type[SchedulingError], error: str
) -> None:
    with pytest.raises(kind, match=error):
        scheduler("prefill", "encode").schedule(make_request(headers=headers), [make_endpoint()])


def test_the_error_does_not_repeat_all_that_a_client_wrote() -> None:
    request = make_request(headers={"epp-profile": "x" * 60_000})
    with pytest.raises(UnknownProfileError, match=rf"asks for profile '{'x' * 64}\.\.\.'; there"):
        scheduler("a", "b").schedule(request, [make_endpoint()])


def test_no_profile_at_all_is_refused() -> None:
    with pytest.raises(ProfileLoopError, match="configured: none"):
        scheduler().schedule(make_request(), [make_endpoint()])


def test_a_failed_profile_fails_with_its_own_error() -> None:
    nobody = make_plugin(ByLabelFilter, {"label": "x", "validValues": ["y"]}, name="nobody")
    run = scheduler("prefill", "decode", filters=[nobody])
    with pytest.raises(NoEndpointsError, match=r"'decode'.*nobody removed a"):
        run.schedule(make_request(), [make_endpoint("a")])


@pytest.mark.parametrize("blank", ["", "  "])
def test_blank_parameters_mean_the_defaults_as_in_the_reference(blank: str) -> None:
    parameters = {"headerName": blank, "defaultProfile": blank}
    run = scheduler("prefill", "decode", parameters=parameters)
    request = make_request(headers={"epp-profile": "prefill"})
    assert run.schedule(make_request(), [make_endpoint()]).primary == "decode"
    assert run.schedule(request, [make_endpoint()]).primary == "prefill"
