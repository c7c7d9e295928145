"""The endpoints that may be picked, by the health of the pool."""

from collections.abc import Collection, Mapping, Sequence
from random import Random

import pytest
from structlog.testing import capture_logs

from epp.outlier_detection import Evidence, HealthState, OutlierDetector, OutlierSettings
from epp.scheduling import Endpoint, Plugin


class Source(Plugin):
    """The data source that polls model servers."""

    type = "metrics-data-source"
    name = "metrics"


class Exporter(Source):
    type = "dcgm"


class Health(Source):
    type = "health-check"


SOURCE, EXPORTER, HEALTH = Source(), Exporter(), Health()


DEFAULTS = OutlierSettings()


class World:
    """A pool of endpoints with pages every 50 ms, and a detector."""

    def __init__(self, count: int = 4, *, settings: OutlierSettings = DEFAULTS) -> None:
        self.now = 0.0
        self.waiting_since: dict[Endpoint, float] = {}
        """Begin of the scrapes that get no response."""
        self.endpoints = [Endpoint(f"default/{n}", f"10.0.0.{n}:80") for n in range(count)]
        self.serving: Sequence[Endpoint] = self.endpoints
        """Those that are not draining."""
        self.changes = 0
        self.detector = OutlierDetector(
            lambda: self.serving,
            settings=settings,
            clock=lambda: self.now,
            rng=Random(1),
            waiting=lambda: [(e, SOURCE.name, at) for e, at in self.waiting_since.items()],
            changed=self._changed,
        )
        for endpoint in self.endpoints:
            self.detector.endpoint_added(endpoint)
        self.run(1.0)

    def _changed(self) -> None:
        self.changes += 1

    def drain(self, *numbers: int) -> None:
        """Drain these endpoints and no others."""
        for number, endpoint in enumerate(self.endpoints):
            endpoint.is_draining = number in numbers
        self.serving = [each for each in self.endpoints if not each.is_draining]

    def run(
        self,
        seconds: float,
        *,
        refusing: Collection[int] = (),
        silent: Collection[int] = (),
        resting: Collection[int] = (),
    ) -> None:
        """Let time pass; some endpoints refuse scrapes, do not respond to them, or get none."""
        for _ in range(round(seconds / 0.05)):
            for number, endpoint in enumerate(self.endpoints):
                if number not in silent:
                    self.waiting_since.pop(endpoint, None)
                if number not in resting:
                    self.waiting_since.setdefault(endpoint, self.now)
            self.now += 0.05
            for number, endpoint in enumerate(self.endpoints):
                if number in refusing:
                    self.detector.poll_failed(SOURCE, endpoint, "connect")
                elif number not in {*silent, *resting}:
                    self.detector.page_scraped(SOURCE, endpoint, 0.001)
            self.detector.check()

    def fail(self, number: int, times: int = 3, status: int = 500) -> None:
        for _ in range(times):
            self.detector.responded(self.endpoints[number], status)

    def serve(self, seconds: int, broken: Mapping[int, float], *, per_second: int = 40) -> None:
        """Let requests end, of which a share is broken by endpoint."""
        for _ in range(seconds):
            for number, endpoint in enumerate(self.endpoints):
                if endpoint in self.detector.available():
                    for request in range(per_second):
                        is_whole = request >= per_second * broken.get(number, 0.0)
                        self.detector.ended(endpoint, is_whole=is_whole)
            self.run(1.0)

    def available(self) -> set[int]:
        kept = self.detector.available()
        return {number for number, each in enumerate(self.endpoints) if each in kept}

    def shares(self, number: int, requests: int = 1000) -> float:
        return sum(number in self.available() for _ in range(requests)) / requests


def test_a_healthy_pool_is_passed_on_as_it_is() -> None:
    world = World()
    assert world.detector.available() is world.endpoints
    assert not any(endpoint.is_watched for endpoint in world.endpoints)


def test_an_endpoint_that_refuses_connections_is_out_within_100_ms_and_back_within_3_s() -> None:
    world = World()
    world.run(0.1, refusing=(0,))
    assert world.available() == {1, 2, 3}
    assert not world.detector.may_be_picked(world.endpoints[0])
    world.run(10.0, refusing=(0,))
    assert world.available() == {1, 2, 3}
    world.run(0.1)
    assert 0.05 < world.shares(0) < 0.2
    world.run(1.0)
    assert 0.4 < world.shares(0) < 0.7
    world.run(1.5)
    assert world.detector.available() is world.endpoints
    assert world.changes == 4  # suspect, ejected, probing, healthy


def test_an_endpoint_that_hangs_is_out_within_half_a_second() -> None:
    world = World()
    world.run(0.5, silent=(2,))
    assert world.available() == {0, 1, 3}


def test_a_process_that_was_busy_itself_blames_nobody() -> None:
    world = World()
    world.now += 0.7
    world.detector.check()
    assert world.detector.available() is world.endpoints
    world.run(0.2, silent=(2,))
    assert world.available() == {0, 1, 3}, "the others have answered since"


def test_an_endpoint_that_is_not_scraped_for_a_while_is_not_silent() -> None:
    world = World()
    world.run(14.0, resting=(2,))
    assert world.available() == {0, 1, 2, 3}
    world.run(0.5, silent=(2,))
    assert world.available() == {0, 1, 3}


def test_if_most_pages_are_late_the_endpoints_are_not_at_fault() -> None:
    world = World()
    world.run(3.0, silent=(0, 1, 2))
    assert world.available() == {0, 1, 2, 3}
    assert not world.detector.is_panicking


def test_failed_responses_eject_whatever_the_metrics_say() -> None:
    world = World()
    world.fail(1)
    assert world.available() == {0, 2, 3}
    world.run(0.9)
    assert world.available() == {0, 2, 3}
    world.run(0.2)
    assert 0.05 < world.shares(1) < 0.2


def test_success_between_failures_is_no_reason_to_eject() -> None:
    world = World()
    for _ in range(10):
        world.fail(1, times=2)
        assert world.endpoints[1].is_watched
        world.detector.responded(world.endpoints[1], 200)
        assert not world.endpoints[1].is_watched
    assert world.detector.available() is world.endpoints


def test_if_more_than_half_would_be_out_all_are_in_and_the_log_says_so() -> None:
    world = World()
    world.fail(0)
    world.fail(1)
    assert world.available() == {2, 3}
    with capture_logs() as lines:
        world.fail(2)
    assert world.available() == {0, 1, 2, 3}
    assert world.detector.is_panicking
    assert all(map(world.detector.may_be_picked, world.endpoints))
    assert lines[-1] == {
        "event": "too many endpoints are ejected, all are used",
        "log_level": "warning",
        "ejected": 3,
        "endpoints": 4,
        "max_ejection_percent": 50,
    }
    with capture_logs() as lines:
        world.run(1.1)
    assert "ejected endpoints are left out again" in [line["event"] for line in lines]
    assert not world.detector.is_panicking


@pytest.mark.parametrize(
    ("count", "percent", "ejected", "panics"),
    [
        (1, 50, 1, False),
        (2, 50, 1, False),
        (2, 50, 2, True),
        (3, 50, 2, True),
        (4, 50, 2, False),
        (10, 0, 1, False),
        (10, 0, 2, True),
        (4, 100, 4, False),
    ],
)
def test_one_endpoint_or_the_percentage_may_be_out(
    count: int, percent: int, ejected: int, panics: bool
) -> None:
    world = World(count, settings=OutlierSettings(max_ejection_percent=percent))
    for number in range(ejected):
        world.fail(number)
    assert world.detector.is_panicking is panics
    in_use = count if panics or ejected == count else count - ejected
    assert len(world.available()) == in_use


def test_transitions_are_logged_with_their_reason() -> None:
    world = World()
    with capture_logs() as lines:
        world.fail(1, status=503)
        world.run(1.1)
        world.detector.responded(world.endpoints[1], 200)
        world.run(3.0)
    assert [(line["event"], line["log_level"], line["reason"]) for line in lines] == [
        ("endpoint is suspect", "debug", "failed response with 503"),
        ("endpoint is ejected", "warning", "3 failed responses in a row, the last with 503"),
        ("endpoint is probing", "info", "3 failed responses in a row, the last with 503"),
        ("endpoint is healthy", "info", ""),
    ]
    assert {line["address"] for line in lines} == {"10.0.0.1:80"}


@pytest.mark.parametrize("kind", ["status", "page", "too-large", "protocol", "plugin", "busy"])
def test_a_server_that_answers_with_a_bad_page_is_there(kind: str) -> None:
    world = World()
    for _ in range(5):
        world.detector.poll_failed(SOURCE, world.endpoints[0], kind)
    assert world.detector.available() is world.endpoints


def test_an_exporter_beside_the_server_is_no_evidence() -> None:
    world = World()
    for _ in range(5):
        world.detector.page_scraped(EXPORTER, world.endpoints[0], 0.1)
        world.detector.poll_failed(EXPORTER, world.endpoints[0], "connect")
    assert world.detector.available() is world.endpoints


def test_an_endpoint_that_left_is_forgotten() -> None:
    world = World()
    gone = world.endpoints.pop(1)
    world.fail(1)
    world.detector.endpoint_removed(gone)
    world.detector.responded(gone, 500)
    world.detector.page_scraped(SOURCE, gone, 0.1)
    world.detector.poll_failed(SOURCE, gone, "connect")
    assert [endpoint for endpoint, _ in world.detector] == world.endpoints
    assert len(world.available()) == 2


def test_an_endpoint_that_drains_counts_neither_as_ejected_nor_as_one_of_the_pool() -> None:
    world = World(5)
    world.drain(0)
    for number in (0, 1, 2):
        world.fail(number)
    assert world.available() == {3, 4}, "two of the four that take requests may be ejected"
    world.fail(3)
    assert world.detector.is_panicking
    assert world.available() == {1, 2, 3, 4}, "it stays out in panic"


def test_a_pool_is_judged_anew_when_endpoints_begin_or_cease_to_drain() -> None:
    world = World()
    world.fail(0)
    world.fail(1)
    assert not world.detector.is_panicking
    with capture_logs() as logs:
        world.drain(2)
        world.run(0.05)
    assert world.detector.is_panicking
    (line,) = [each for each in logs if "too many" in each["event"]]
    assert (line["ejected"], line["endpoints"]) == (2, 3)
    world.drain()
    world.run(0.05)
    assert not world.detector.is_panicking


def test_draining_endpoints_that_are_stopped_keep_no_other_from_being_ejected() -> None:
    world = World()
    world.drain(0, 1)
    world.run(1.0, silent={0, 1, 3})
    assert world.available() == {2}


def test_failed_health_checks_eject_and_late_ones_do_not() -> None:
    world = World()
    endpoint = world.endpoints[0]
    world.detector.page_scraped(HEALTH, endpoint, 0.001)
    for _ in range(5):
        world.detector.poll_failed(HEALTH, endpoint, "timeout")
    assert world.available() == {0, 1, 2, 3}
    for _ in range(2):
        world.detector.poll_failed(HEALTH, endpoint, "status")
    assert world.available() == {1, 2, 3}
    world.detector.page_scraped(HEALTH, endpoint, 0.001)
    world.run(3.0)
    assert world.available() == {0, 1, 2, 3}


def test_an_endpoint_that_breaks_far_more_responses_than_others_is_ejected() -> None:
    world = World()
    world.serve(5, {})
    world.serve(2, {1: 0.9, 2: 0.05})
    assert world.available() == {0, 2, 3}
    health = world.detector.health_of(world.endpoints[1])
    assert health is not None
    assert health.evidence is Evidence.SUCCESS_RATE
    assert "of recent responses failed" in health.reason


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({}, id="nothing is broken"),
        pytest.param({0: 0.1}, id="a few more at one"),
        pytest.param(dict.fromkeys(range(4), 0.6), id="clients leave everywhere"),
    ],
)
def test_equal_success_rates_eject_nobody(broken: Mapping[int, float]) -> None:
    world = World()
    world.serve(30, broken)
    assert all(health.state is HealthState.HEALTHY for _, health in world.detector)


def test_few_requests_are_not_compared() -> None:
    world = World()
    world.serve(30, {0: 1.0}, per_second=2)
    assert world.available() == {0, 1, 2, 3}
    alone = World(1)
    alone.serve(30, {0: 1.0})
    assert alone.available() == {0}


def test_a_client_that_leaves_from_half_of_the_servers_gets_one_of_them_out() -> None:
    world = World()
    for _ in range(20):
        world.serve(1, {0: 1.0, 1: 1.0})
        states = [health.state for _, health in world.detector]
        assert states.count(HealthState.EJECTED) <= 1
