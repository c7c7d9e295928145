"""Endpoints that accept requests and do not answer them."""

from collections.abc import Sequence

import pytest
from outlier_detection.test_detector import World

from epp.outlier_detection import Evidence, HealthState, OutlierSettings
from epp.outlier_detection.silences import USUAL_SILENCES, WAITING_REQUESTS
from epp.scheduling import EndpointMetrics

LIMIT = OutlierSettings().response_overdue_seconds


def respond(world: World, seconds: float, answering: Sequence[int] = ()) -> None:
    """Let time pass; some endpoints begin a response every 0.25 s."""
    for _ in range(round(seconds / 0.25)):
        for number in answering:
            world.endpoints[number].heads += 1
        world.run(0.25)


def state(world: World, number: int) -> HealthState:
    health = world.detector.health_of(world.endpoints[number])
    assert health is not None
    return health.state


def test_an_endpoint_at_which_all_requests_wait_is_ejected_and_returns_with_a_small_share() -> None:
    world = World()
    hanging = world.endpoints[0]
    hanging.awaited = WAITING_REQUESTS
    respond(world, LIMIT - 0.5, answering=(1, 2))
    assert state(world, 0) is HealthState.HEALTHY
    respond(world, 1.0, answering=(1, 2))
    health = world.detector.health_of(hanging)
    assert health is not None
    assert health.state is HealthState.EJECTED
    assert health.reason.startswith("no response for 5.")
    assert health.reason.endswith(f" s, {WAITING_REQUESTS} streamed requests wait")
    respond(world, 2.0, answering=(1, 2))
    assert state(world, 0) is HealthState.PROBING
    assert 0.05 < world.shares(0) < 0.2
    respond(world, LIMIT + 0.5, answering=(1, 2))
    assert state(world, 0) is HealthState.EJECTED  # it still hangs
    assert health.ejections[Evidence.SILENCE] == 2


@pytest.mark.parametrize(
    ("awaited", "queue", "responses"),
    [
        pytest.param(WAITING_REQUESTS - 1, 0, False, id="few wait: perhaps long prompts"),
        pytest.param(WAITING_REQUESTS, 1, False, id="it has a queue"),
        pytest.param(WAITING_REQUESTS, 0, True, id="others get a response"),
        pytest.param(0, 0, False, id="nothing is sent there"),
    ],
)
def test_a_silence_with_another_reason_is_no_evidence(
    awaited: int, queue: int, responses: bool
) -> None:
    world = World()
    world.endpoints[0].awaited = awaited
    world.endpoints[0].metrics = EndpointMetrics(waiting_requests=queue)
    respond(world, 6 * LIMIT, answering=(0, 1, 2, 3) if responses else (1, 2, 3))
    assert world.detector.available() is world.endpoints


def test_a_silence_is_compared_with_those_of_the_others() -> None:
    world = World()
    world.endpoints[0].awaited = world.endpoints[1].awaited = WAITING_REQUESTS
    respond(world, 4.0, answering=(0, 2, 3))
    respond(world, 0.25, answering=(0, 1, 2, 3))  # the other one was silent for 4 s
    respond(world, 8.0, answering=(1, 2, 3))
    assert world.changes == 0
    respond(world, USUAL_SILENCES * 4.0 - 8.0, answering=(1, 2, 3))
    assert world.changes > 0


def test_if_most_endpoints_are_silent_none_is_ejected() -> None:
    world = World()
    for endpoint in world.endpoints[:3]:
        endpoint.awaited = WAITING_REQUESTS
    respond(world, 4 * LIMIT, answering=(3,))
    assert world.detector.available() is world.endpoints


def test_the_limit_can_be_turned_off() -> None:
    world = World(settings=OutlierSettings(response_overdue_seconds=0.0))
    world.endpoints[0].awaited = WAITING_REQUESTS
    respond(world, 4 * LIMIT, answering=(1, 2, 3))
    assert world.detector.available() is world.endpoints
