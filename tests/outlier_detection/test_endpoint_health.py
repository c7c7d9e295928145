"""The states of one endpoint, by its evidence."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from epp.outlier_detection import EndpointHealth, Evidence, HealthState, OutlierSettings

SETTINGS = OutlierSettings()
HEALTHY, SUSPECT = HealthState.HEALTHY, HealthState.SUSPECT
EJECTED, PROBING = HealthState.EJECTED, HealthState.PROBING


def scraped(settings: OutlierSettings = SETTINGS, until: float = 0.0) -> EndpointHealth:
    """Return the health of an endpoint with a page every 50 ms until ``until``."""
    health = EndpointHealth(settings, until - 1.0)
    for number in range(21):
        health.page_scraped(0.01, until - 1.0 + number * 0.05)
    return health


def fail(health: EndpointHealth, *times: float, status: int = 500) -> None:
    for now in times:
        health.response_failed(status, False, now)


def refuse(health: EndpointHealth, *times: float) -> None:
    for now in times:
        health.scrape_failed("connect", now)


def test_two_refused_scrapes_eject_and_two_pages_bring_back() -> None:
    health = scraped()
    refuse(health, 0.05)
    assert (health.state, health.reason) == (SUSPECT, "1 failed scrape in a row (connect)")
    refuse(health, 0.10)
    assert (health.state, health.evidence) == (EJECTED, Evidence.SCRAPES)
    assert health.reason == "2 failed scrapes in a row (connect)"
    health.pass_time(1000.0)
    assert health.state is EJECTED, "time alone brings no server back"
    health.page_scraped(0.01, 1000.0)
    assert health.state is EJECTED
    health.page_scraped(0.01, 1000.05)
    assert (health.state, health.since) == (PROBING, 1000.05)


def test_a_page_between_two_failures_clears_the_first() -> None:
    health = scraped()
    refuse(health, 0.05)
    health.page_scraped(0.01, 0.1)
    assert health.state is HEALTHY
    refuse(health, 0.15)
    assert health.state is SUSPECT


def test_a_server_without_metrics_is_not_ejected_for_that() -> None:
    health = EndpointHealth(SETTINGS, 0.0)
    refuse(health, *range(1, 50))
    assert health.state is HEALTHY
    assert health.overdue_at(0.0) == inf


def test_three_failed_responses_in_a_row_eject_for_a_time_that_doubles() -> None:
    health = scraped()
    fail(health, 0.1, 0.2)
    assert (health.state, health.is_watched) == (SUSPECT, True)
    health.response_succeeded(0.3)
    assert (health.state, health.is_watched) == (HEALTHY, False)
    lengths = []
    now = 1.0
    fail(health, now, now)
    for _ in range(8):
        fail(health, now, status=503)
        assert (health.state, health.evidence) == (EJECTED, Evidence.RESPONSES)
        lengths.append(health.returns_at - now)
        now = health.returns_at
        health.pass_time(now - 0.001)
        assert health.state is EJECTED
        health.pass_time(now)
        assert health.state is PROBING
    assert lengths == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert health.ejections == dict.fromkeys(Evidence, 0) | {Evidence.RESPONSES: 8}


def test_pages_do_not_end_an_ejection_for_failed_responses() -> None:
    health = scraped()
    fail(health, 0.1, 0.1, 0.1)
    for number in range(10):
        health.page_scraped(0.01, 0.15 + number * 0.05)
    assert health.state is EJECTED


def test_the_first_ejection_is_short_again_after_a_long_time_without_one() -> None:
    health = scraped()
    fail(health, 0.0, 0.0, 0.0)
    health.pass_time(1.0)
    health.response_succeeded(1.1)
    health.pass_time(10.0)
    assert health.state is HEALTHY
    fail(health, 71.0, 71.0, 71.0)
    assert health.returns_at == 72.0
    health.pass_time(72.0)
    health.response_succeeded(72.0)
    health.pass_time(75.0)
    fail(health, 76.0, 76.0, 76.0)
    assert health.returns_at == 78.0


def test_the_share_of_a_returning_endpoint_grows() -> None:
    health = scraped()
    refuse(health, 0.05, 0.10)
    health.page_scraped(0.01, 5.0)
    health.page_scraped(0.01, 5.05)
    shares = [health.share(5.05 + seconds) for seconds in (0.0, 1.0, 2.0, 9.0)]
    assert shares == pytest.approx([0.1, 0.55, 1.0, 1.0])
    health.pass_time(6.0)
    assert health.state is PROBING
    health.pass_time(7.06)
    assert (health.state, health.reason) == (HEALTHY, "")


def test_after_failed_responses_the_share_grows_once_a_response_succeeds() -> None:
    health = scraped()
    fail(health, 0.0, 0.0, 0.0)
    health.pass_time(1.0)
    health.pass_time(100.0)
    assert (health.state, health.share(100.0)) == (PROBING, 0.1)
    health.response_succeeded(100.0)
    health.pass_time(100.0)
    assert health.state is HEALTHY


@pytest.mark.parametrize("event", [refuse, fail])
def test_one_failure_ejects_a_returning_endpoint(
    event: Callable[[EndpointHealth, float], None],
) -> None:
    health = scraped()
    refuse(health, 0.05, 0.10)
    health.page_scraped(0.01, 5.0)
    health.page_scraped(0.01, 5.05)
    event(health, 5.1)
    assert health.state is EJECTED


def test_a_response_shows_that_a_server_is_there_whatever_scrapes_say() -> None:
    health = scraped()
    refuse(health, 0.05, 0.10)
    health.response_succeeded(0.2)
    assert health.state is PROBING


def test_a_page_is_overdue_at_three_times_the_longest_recent_wait() -> None:
    health = scraped()
    assert health.overdue_at(5.0) == pytest.approx(5.3)
    health.page_scraped(0.2, 0.2)  # a page after 0.2 s
    assert health.overdue_at(0.2) == pytest.approx(0.8)
    health.page_overdue(0.81)
    assert (health.state, health.is_watched) == (SUSPECT, True)
    health.page_overdue(0.90)
    assert health.state is SUSPECT
    health.page_overdue(0.92)
    assert (health.state, health.reason) == (EJECTED, "no metrics for 0.72 s")


def test_an_endpoint_that_responds_is_not_ejected_for_slow_metrics() -> None:
    health = scraped()
    for now in (0.4, 0.8, 1.2):
        assert now > health.overdue_at(0.0)
        health.page_overdue(now)
        assert health.state is SUSPECT
        health.response_succeeded(now + 0.05)
        assert health.state is HEALTHY
    health.scrape_failed("timeout", 2.0)
    health.response_succeeded(2.5)
    health.scrape_failed("timeout", 3.0)
    assert health.state is SUSPECT


def test_an_ejected_endpoint_that_is_gone_does_not_return_by_time() -> None:
    health = scraped()
    fail(health, 0.0, 0.0, 0.0)
    refuse(health, 0.05, 0.10)
    health.pass_time(5.0)
    assert (health.state, health.reason) == (EJECTED, "2 failed scrapes in a row (connect)")
    assert sum(health.ejections.values()) == 1
    health.page_scraped(0.01, 5.0)
    health.page_scraped(0.01, 5.05)
    assert health.state is PROBING


def test_failures_while_ejected_change_nothing() -> None:
    health = scraped()
    fail(health, 0.0, 0.0, 0.0)
    fail(health, 0.5)
    refuse(health, 0.5)
    health.page_overdue(0.6)
    assert (health.returns_at, sum(health.ejections.values())) == (1.0, 1)


def test_two_failed_health_checks_eject_and_a_successful_one_brings_back() -> None:
    health = scraped()
    health.health_check_passed(0.0)
    health.health_check_failed("status", 1.0)
    assert (health.state, health.reason) == (SUSPECT, "1 failed health check in a row (status)")
    health.page_scraped(0.01, 1.5)
    health.response_succeeded(1.6)
    assert health.state is SUSPECT, "metrics and responses do not outweigh a failed check"
    health.health_check_failed("status", 2.0)
    assert (health.state, health.evidence) == (EJECTED, Evidence.HEALTH_CHECKS)
    health.page_scraped(0.01, 2.1)
    health.pass_time(1000.0)
    assert health.state is EJECTED
    health.health_check_passed(1000.0)
    assert health.state is PROBING
    health.health_check_failed("status", 1001.0)
    assert health.state is EJECTED
    assert health.ejections[Evidence.HEALTH_CHECKS] == 2


def test_a_server_without_a_health_page_is_not_ejected_for_that() -> None:
    health = scraped()
    for now in range(1, 20):
        health.health_check_failed("status", now)
    assert health.state is HEALTHY


def test_a_passed_check_between_two_failed_ones_clears_the_first() -> None:
    health = scraped()
    health.health_check_passed(0.0)
    health.health_check_failed("connect", 1.0)
    health.health_check_passed(2.0)
    health.page_scraped(0.01, 2.1)
    assert health.state is HEALTHY
    health.health_check_failed("connect", 3.0)
    assert health.state is SUSPECT


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"health_check_path": "health"}, "'health' is not a path such as /health"),
        ({"health_check_path": "/h\u00e9"}, "is not a path"),
        ({"health_check_path": "/a b"}, "write it as %20"),
        ({"health_check_interval_seconds": 0.01}, "--health-check-interval: 0.01 s is less than"),
    ],
)
def test_health_checks_that_cannot_be_made_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OutlierSettings(**settings)
