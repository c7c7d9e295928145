from typing import Any

import pytest

from epp.scheduling import SchedulingResult, StateKey
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    run_profile,
)
from epp_plugins.data_producers.session_id import SessionIdProducer
from epp_plugins.scorers.session_affinity import SessionAffinityScorer
from epp_plugins.state_keys import SESSION_ID

BY_HEADER = {"headerName": "X-Session-Id"}
BY_COOKIE = {"cookieName": "chat"}


@pytest.mark.parametrize(
    ("parameters", "headers", "want"),
    [
        pytest.param(BY_HEADER, {"x-session-id": "s-1"}, "s-1", id="a header"),
        pytest.param({"headerName": " x-Sid "}, {"x-sid": "s"}, "s", id="blanks in its name"),
        pytest.param(BY_HEADER, {"x-session-id": "  s-1 "}, "s-1", id="blanks around the id"),
        pytest.param(BY_HEADER, {}, None, id="no header"),
        pytest.param(BY_HEADER, {"x-session-id": " "}, None, id="an empty header"),
        pytest.param(BY_HEADER, {"x-session-id": "x" * 257}, None, id="too long"),
        pytest.param(BY_HEADER, {"x-session-id": "a\x00b"}, None, id="a control character"),
        pytest.param(BY_HEADER, {"cookie": "chat=s-1"}, None, id="a cookie is not asked for"),
        pytest.param(BY_COOKIE, {"cookie": "chat=s-1"}, "s-1", id="the only cookie"),
        pytest.param(BY_COOKIE, {"cookie": "a=b; chat=s=1 ;c"}, "s=1", id="one among others"),
        pytest.param(BY_COOKIE, {"cookie": "chat=s-1; chat=s-2"}, "s-1", id="the first of two"),
        pytest.param(BY_COOKIE, {"cookie": "Chat=s-1; xchat=s-2"}, None, id="other cookies"),
        pytest.param(BY_COOKIE, {"cookie": "chat"}, None, id="a cookie without a value"),
        pytest.param(BY_COOKIE, {"cookie": ";" * 255 + "chat=s-1"}, "s-1", id="the 256th"),
        pytest.param(BY_COOKIE, {"cookie": ";" * 256 + "chat=s-1"}, None, id="the 257th"),
        pytest.param(BY_COOKIE, {"chat": "s-1"}, None, id="a header is not asked for"),
    ],
)
def test_id(parameters: dict[str, Any], headers: dict[str, str], want: str | None) -> None:
    producer = make_plugin(SessionIdProducer, parameters, name="session-id-producer")
    state = make_state()
    producer.prepare(make_request(headers=headers), state)
    assert state.read(SESSION_ID) == want


def test_the_id_is_known_under_the_producers_own_name_too() -> None:
    producer = make_plugin(SessionIdProducer, BY_HEADER, name="mine")
    state = make_state()
    producer.prepare(make_request(headers={"x-session-id": "s-1"}), state)
    own: StateKey[str] = StateKey("SessionIDDataKey/mine")
    assert (state.read(SESSION_ID), state.read(own)) == ("s-1", "s-1")
    assert producer.writes == (SESSION_ID, own)


@pytest.mark.parametrize(
    ("names", "want"),
    [
        pytest.param(["first", "second"], "first", id="else the first"),
        pytest.param(["other", "session-id-producer"], "session-id-producer", id="the default"),
        pytest.param(["session-id-producer", "other"], "session-id-producer", id="in any order"),
    ],
)
def test_of_several_producers(names: list[str], want: str) -> None:
    state = make_state()
    for name in names:
        producer = make_plugin(SessionIdProducer, {"headerName": name}, name=name)
        producer.prepare(make_request(headers={each: each for each in names}), state)
    assert state.read(SESSION_ID) == want


def test_it_is_made_by_default_for_nothing() -> None:
    assert SessionIdProducer.default_for == ()


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({}, id="neither"),
        pytest.param({"headerName": " "}, id="a blank one"),
        pytest.param({**BY_HEADER, **BY_COOKIE}, id="both"),
    ],
)
def test_exactly_one_source_is_wanted(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set exactly one of `headerName` and `cookieName`, such"):
        make_plugin(SessionIdProducer, parameters)


def test_a_profile_follows_the_session() -> None:
    source = {"attribute": "SessionIDDataKey", "producer": "session-id-producer"}
    parameters = {"strategy": "session_id", "sessionIdConfig": {"sources": [source]}}
    producer = make_plugin(SessionIdProducer, BY_COOKIE, name="session-id-producer")
    scorer = make_plugin(SessionAffinityScorer, parameters, clock=lambda: 100.0)
    assert set(scorer.reads) <= set(producer.writes)
    request, state = make_request(headers={"cookie": "chat=s-1"}), make_state()
    producer.prepare(request, state)
    a, b = make_endpoint("a"), make_endpoint("b")
    profile = make_profile(scorers=[scorer])
    first = profile.run(request, [b], state)
    scorer.pre_request(request, SchedulingResult({"default": first}, "default"), state)
    assert run_profile(profile, request, [a, b], state) == ["b", "a"]
