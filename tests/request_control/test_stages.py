"""Requests with several stages: reservations and destinations."""

from collections.abc import Mapping
from random import Random
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from epp.outlier_detection import HealthState, OutlierDetector, OutlierSettings
from epp.request_control import EndCause
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import make_endpoint
from tools.harness.request_control import Clock, Epp


class Staged(ProfileHandler):
    """Returns the given profiles and endpoints; the first profile is the primary one."""

    type: ClassVar[str] = "staged"

    def __init__(
        self, stages: Mapping[str, list[Endpoint]], destination: str = "", name: str = "staged"
    ) -> None:
        self.name = name
        self.stages = stages
        self.destination = destination

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        return {} if results else profiles

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        profiles = {
            name: ProfileResult(
                name,
                [ScoredEndpoint(each, 1.0) for each in endpoints],
                [ScoredEndpoint(each, 0.25 * n) for n, each in enumerate(self.pool())],
            )
            for name, endpoints in self.stages.items()
        }
        return SchedulingResult(profiles, next(iter(self.stages)), self.destination)

    def pool(self) -> list[Endpoint]:
        return [each for endpoints in self.stages.values() for each in endpoints]


def pool() -> dict[str, Endpoint]:
    names = ("decode", "prefill", "encode", "other")
    return {
        name: make_endpoint(f"default/{name}", address=f"10.0.0.{number}:8000")
        for number, name in enumerate(names)
    }


def in_flight(endpoints: Mapping[str, Endpoint]) -> dict[str, int]:
    return {name: each.load.in_flight for name, each in endpoints.items() if each.load.in_flight}


def staged(endpoints: Mapping[str, Endpoint], **stages: list[str]) -> Staged:
    return Staged({name: [endpoints[each] for each in names] for name, names in stages.items()})


def test_every_stage_is_reserved_and_the_earlier_ones_until_the_response_begins() -> None:
    endpoints = pool()
    handler = staged(endpoints, decode=["decode"], prefill=["prefill"], encode=["encode"])
    routed = Epp(list(endpoints.values()), handler=handler).handle()
    assert in_flight(endpoints) == {"decode": 1, "prefill": 1, "encode": 1}
    routed.response_started(200)
    assert in_flight(endpoints) == {"decode": 1}
    routed.response_started(200)
    routed.close(EndCause.COMPLETED)
    assert in_flight(endpoints) == {}


def test_a_request_that_ends_without_a_response_gives_every_stage_back() -> None:
    endpoints = pool()
    handler = staged(endpoints, decode=["decode"], prefill=["prefill"])
    routed = Epp(list(endpoints.values()), handler=handler).handle()
    routed.close(EndCause.CLIENT_DISCONNECT)
    assert in_flight(endpoints) == {}
    routed.response_started(200)  # too late
    assert in_flight(endpoints) == {}


def test_one_endpoint_for_two_stages_is_reserved_twice() -> None:
    endpoints = pool()
    handler = staged(endpoints, decode=["decode"], prefill=["decode"])
    routed = Epp(list(endpoints.values()), handler=handler).handle()
    assert in_flight(endpoints) == {"decode": 2}
    routed.response_started(200)
    assert in_flight(endpoints) == {"decode": 1}


def test_a_stage_that_failed_reserves_nothing() -> None:
    endpoints = pool()
    handler = staged(endpoints, decode=["decode"], prefill=[])
    Epp(list(endpoints.values()), handler=handler).handle()
    assert in_flight(endpoints) == {"decode": 1}


@pytest.mark.parametrize(
    ("picked", "destination", "sent"),
    [
        pytest.param(["decode"], "", "10.0.0.0:8000", id="one"),
        pytest.param(["decode", "other"], "", "10.0.0.0:8000,10.0.0.3:8000", id="ordered list"),
        pytest.param(["decode"], "10.0.0.0:7000", "10.0.0.0:7000", id="another port"),
    ],
)
def test_gateway_gets_the_picked_endpoints_best_first_or_the_handlers_destination(
    picked: list[str], destination: str, sent: str
) -> None:
    endpoints = pool()
    handler = staged(endpoints, decode=picked)
    handler.destination = destination
    routed = Epp(list(endpoints.values()), handler=handler).handle()
    assert routed.decision.destination == sent
    assert in_flight(endpoints) == {"decode": 1}


def test_the_place_stays_where_it_is_when_the_handlers_destination_served() -> None:
    endpoints = pool()
    handler = staged(endpoints, decode=["decode"])
    handler.destination = endpoints["other"].address
    routed = Epp(list(endpoints.values()), handler=handler).handle()
    routed.served_by(endpoints["other"].address)
    assert in_flight(endpoints) == {"decode": 1}
    routed.served_by(endpoints["encode"].address)
    assert in_flight(endpoints) == {"encode": 1}


def test_a_fallback_that_served_gets_the_place() -> None:
    endpoints = pool()
    routed = Epp(
        list(endpoints.values()), handler=staged(endpoints, decode=["decode", "other"])
    ).handle()
    routed.served_by(endpoints["other"].address)
    assert in_flight(endpoints) == {"other": 1}


def test_scores_are_reported_by_address_only_when_asked_for() -> None:
    endpoints = pool()
    handler = staged(endpoints, decode=["decode", "other"])
    epp = Epp(list(endpoints.values()), handler=handler)
    assert epp.handle().decision.scores is None
    epp = Epp(list(endpoints.values()), handler=handler, emit_endpoint_scores=True)
    assert epp.handle().decision.scores == {"10.0.0.0:8000": 0.0, "10.0.0.3:8000": 0.25}


@pytest.mark.parametrize(
    ("stages", "logged"),
    [
        pytest.param(
            {"decode": ["decode"], "prefill": ["prefill"], "encode": ["encode"]},
            {"prefill": "default/prefill", "encode": "default/encode"},
            id="three stages",
        ),
        pytest.param({"decode": ["decode"], "prefill": []}, None, id="one that failed"),
        pytest.param({"decode": ["decode"]}, None, id="no other stage"),
    ],
)
def test_log_line_names_the_other_stages(
    stages: dict[str, list[str]], logged: dict[str, str] | None
) -> None:
    endpoints = pool()
    epp = Epp(list(endpoints.values()), handler=staged(endpoints, **stages))
    with capture_logs() as lines:
        epp.handle().close(EndCause.COMPLETED)
    assert lines[-1].get("stages") == logged


@pytest.mark.parametrize(
    ("status", "ejected"),
    [(502, "default/prefill"), (504, "default/prefill"), (500, "default/decode")],
)
def test_a_server_that_cannot_reach_the_prefill_server_is_not_blamed(
    status: int, ejected: str
) -> None:
    endpoints = pool()
    clock = Clock()
    outliers = OutlierDetector(
        lambda: tuple(endpoints.values()),
        settings=OutlierSettings(consecutive_5xx=2),
        clock=clock,
        rng=Random(0),
        waiting=lambda: (),
    )
    for endpoint in endpoints.values():
        outliers.endpoint_added(endpoint)
    handler = staged(endpoints, decode=["decode"], prefill=["prefill"])
    epp = Epp(list(endpoints.values()), handler=handler, outliers=outliers, clock=clock)
    for given in (status, 200, status, status):
        epp.handle().response_started(given)
    assert [
        endpoint.name for endpoint, health in outliers if health.state is HealthState.EJECTED
    ] == [ejected]
