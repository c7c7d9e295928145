from base64 import b64encode, urlsafe_b64encode
from typing import Any

import pytest

from epp.scheduling import CycleState, SchedulingResult, StateKey
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    run_filter,
    run_profile,
)
from epp_plugins.filters.session_affinity import SessionAffinityFilter
from epp_plugins.state_keys import AGENT_IDENTITY, SESSION_ID

A, B, ODD = make_endpoint("ns/a"), make_endpoint("ns/b"), make_endpoint("ns/Ω")
ENDPOINTS = [A, B, ODD]
ALL = ["ns/a", "ns/b", "ns/Ω"]
BY_ID = {"strategy": "session_id"}


def token(name: str) -> str:
    return b64encode(name.encode()).decode()


def filter_of(parameters: dict[str, Any] | None = None) -> SessionAffinityFilter:
    return make_plugin(SessionAffinityFilter, parameters, clock=lambda: 100.0)


def by_sources(*sources: dict[str, str]) -> dict[str, Any]:
    return {"strategy": "session_id", "sessionIdConfig": {"sources": list(sources)}}


def bind(
    plugin: SessionAffinityFilter, headers: dict[str, str], state: CycleState | None = None
) -> None:
    """Send a first request to ``ns/b``."""
    request, known = make_request(headers=headers), state or make_state()
    result = make_profile(filters=[plugin]).run(request, [B], known)
    plugin.pre_request(request, SchedulingResult({"default": result}, "default"), known)


@pytest.mark.parametrize(
    ("parameters", "headers", "want"),
    [
        pytest.param({}, {"x-session-token": token("ns/b")}, ["ns/b"], id="its endpoint alone"),
        pytest.param({}, {"x-session-token": "bnMvYg=="}, ["ns/b"], id="standard base64, padded"),
        pytest.param({}, {"x-session-token": f" {token('ns/b')} "}, ["ns/b"], id="blanks around"),
        pytest.param({}, {"x-session-token": token("ns/Ω")}, ["ns/Ω"], id="a name in UTF-8"),
        pytest.param({}, {}, ALL, id="no token"),
        pytest.param({}, {"x-session-token": ""}, ALL, id="an empty token"),
        pytest.param({}, {"x-session-token": token("ns/gone")}, ALL, id="an endpoint that is gone"),
        pytest.param({}, {"x-session-token": "bnMvYg"}, ALL, id="no padding"),
        pytest.param({}, {"x-session-token": "bn!MvYg=="}, ALL, id="no base64"),
        pytest.param({}, {"x-session-token": "/w=="}, ALL, id="no UTF-8"),
        pytest.param({}, {"x-session-token": "é"}, ALL, id="no ASCII"),
        pytest.param(
            {},
            {"x-session-token": urlsafe_b64encode("ns/Ω\u07ff".encode()).decode()},
            ALL,
            id="base64 of URLs",
        ),
        pytest.param({}, {"x-session-id": token("ns/b")}, ALL, id="another header"),
        pytest.param(
            {"encodedEndpointHeaderConfig": {"header": " X-Sticky "}},
            {"x-sticky": token("ns/b"), "x-session-token": token("ns/a")},
            ["ns/b"],
            id="the header that is configured",
        ),
        pytest.param(
            {"encodedEndpointHeaderConfig": {"header": ""}},
            {"x-session-token": token("ns/b")},
            ["ns/b"],
            id="an empty one is the default",
        ),
    ],
)
def test_token(parameters: dict[str, Any], headers: dict[str, str], want: list[str]) -> None:
    assert run_filter(filter_of(parameters), make_request(headers=headers), ENDPOINTS) == want


def test_a_token_of_the_longest_name_in_kubernetes_is_understood() -> None:
    longest = make_endpoint(f"{'n' * 63}/{'p' * 253}")
    request = make_request(headers={"x-session-token": token(longest.name)})
    assert run_filter(filter_of(), request, [A, longest]) == [longest.name]


def test_a_token_of_more_than_1024_characters_is_none() -> None:
    long = make_endpoint("n" * 769)  # 256 * 3 + 1 bytes: 1028 characters
    request = make_request(headers={"x-session-token": token(long.name)})
    assert run_filter(filter_of(), request, [A, long]) == ["ns/a", long.name]


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param({"x-session-id": "s-1"}, ["ns/b"], id="the bound one alone"),
        pytest.param({"x-session-id": " s-1 "}, ["ns/b"], id="blanks around the id"),
        pytest.param({"x-session-id": "s-2"}, ALL, id="another session"),
        pytest.param({"x-session-id": "S-1"}, ALL, id="capitals are another session"),
        pytest.param({"x-session-id": ""}, ALL, id="an empty id"),
        pytest.param({}, ALL, id="no id"),
        pytest.param({"x-session-token": token("ns/b")}, ALL, id="a token is not looked at"),
    ],
)
def test_session(headers: dict[str, str], want: list[str]) -> None:
    plugin = filter_of(BY_ID)
    bind(plugin, {"x-session-id": "s-1"})
    assert run_filter(plugin, make_request(headers=headers), ENDPOINTS) == want


@pytest.mark.parametrize("session", ["x" * 257, "a\nb"], ids=["too long", "a control character"])
def test_an_id_that_is_none_is_bound_to_nothing(session: str) -> None:
    plugin = filter_of(BY_ID)
    bind(plugin, {"x-session-id": session})
    request = make_request(headers={"x-session-id": session})
    assert run_filter(plugin, request, ENDPOINTS) == ALL


def test_a_session_whose_endpoint_is_no_candidate_passes_all() -> None:
    plugin = filter_of(BY_ID)
    bind(plugin, {"x-session-id": "s-1"})
    request = make_request(headers={"x-session-id": "s-1"})
    assert run_filter(plugin, request, [A, ODD]) == ["ns/a", "ns/Ω"]
    assert run_filter(plugin, request, []) == []


def test_the_first_source_with_an_id_counts() -> None:
    sources = ({"header": "X-Sid"}, {"attribute": "agent-identity"})
    plugin = filter_of(by_sources(*sources))
    bind(plugin, {"x-sid": "s-1"})
    agent = make_state({AGENT_IDENTITY: "s-1"})
    assert run_filter(plugin, make_request(), ENDPOINTS, agent) == ["ns/b"]
    too_long = make_request(headers={"x-sid": "x" * 257})
    assert run_filter(plugin, too_long, ENDPOINTS, agent) == ["ns/b"], "no id, so the next"
    other = make_request(headers={"x-sid": "s-2"})
    assert run_filter(plugin, other, ENDPOINTS, agent) == ALL
    assert run_filter(plugin, make_request(), ENDPOINTS) == ALL, "no source has one"


@pytest.mark.parametrize(
    ("source", "key"),
    [
        pytest.param({"attribute": "agent-identity"}, AGENT_IDENTITY, id="a key without producer"),
        pytest.param(
            {"attribute": "SessionIDDataKey", "producer": "session-id-producer"},
            SESSION_ID,
            id="the key of a producer",
        ),
        pytest.param({"attribute": "A", "producer": "p"}, StateKey("A/p"), id="of any plugin"),
    ],
)
def test_an_attribute_is_read_and_declared(source: dict[str, str], key: StateKey[str]) -> None:
    plugin = filter_of(by_sources(source))
    assert plugin.reads == (key,)
    bind(plugin, {}, make_state({key: "s-1"}))
    again = make_state({key: "s-1"})
    assert run_filter(plugin, make_request(), ENDPOINTS, again) == ["ns/b"]


def test_an_attribute_that_is_no_text_is_no_id() -> None:
    plugin = filter_of(by_sources({"attribute": "A"}))
    number: StateKey[int] = StateKey("A/")
    bind(plugin, {}, make_state({number: 7}))
    assert run_filter(plugin, make_request(), ENDPOINTS, make_state({number: 7})) == ALL


@pytest.mark.parametrize("parameters", [{}, BY_ID], ids=["tokens", "the default source"])
def test_headers_alone_need_no_producer(parameters: dict[str, Any]) -> None:
    assert filter_of(parameters).reads == ()


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        pytest.param(
            {"strategy": "session_id_header"},
            r"Invalid enum value 'session_id_header' - at `\$\.strategy`",
            id="an unknown strategy",
        ),
        pytest.param(
            by_sources({"header": "x-a"}, {}),
            r"sessionIdConfig\.sources\[1\]: set exactly one of `header` and `attribute`",
            id="a source of nothing",
        ),
        pytest.param(
            by_sources({"header": "x-a", "attribute": "b"}),
            r"sessionIdConfig\.sources\[0\]: set exactly one of `header` and `attribute`",
            id="a source of two",
        ),
        pytest.param(
            by_sources({"header": " "}),
            r"sessionIdConfig\.sources\[0\]: set exactly one of",
            id="a blank header",
        ),
        pytest.param(
            by_sources({"header": "x-a", "producer": "p"}),
            r"sessionIdConfig\.sources\[0\]: `producer` belongs to an attribute: remove it, or",
            id="the producer of a header",
        ),
        pytest.param(
            {"sessionIdConfig": {"evictionTtlSeconds": -1}},
            r">= 0.0 - at `\$\.sessionIdConfig\.evictionTtlSeconds`",
            id="a negative time to live",
        ),
        pytest.param(
            {"sessionIdConfig": {"evictionSweepSeconds": -1}},
            r">= 0.0 - at `\$\.sessionIdConfig\.evictionSweepSeconds`",
            id="a negative sweep",
        ),
        pytest.param(
            {"headerName": "x-session-token"}, "unknown field `headerName`", id="an older spelling"
        ),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        filter_of(parameters)


def test_what_belongs_to_the_other_strategy_is_not_looked_at() -> None:
    unused = {**by_sources({}), "strategy": "encoded_endpoint_header"}
    request = make_request(headers={"x-session-token": token("ns/b")})
    assert run_filter(filter_of(unused), request, ENDPOINTS) == ["ns/b"]


def test_a_profile_picks_the_endpoint_of_the_session() -> None:
    profile = make_profile(filters=[filter_of()])
    request = make_request(headers={"x-session-token": token("ns/b")})
    assert run_profile(profile, request, ENDPOINTS) == ["ns/b"]
