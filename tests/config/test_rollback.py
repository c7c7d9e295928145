"""Rollback of a reload: too many regressions, or many more own failures than before."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.config import RollbackSettings, RollbackWatch
from epp.config.rollback import Cause

SETTINGS = RollbackSettings()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A watch on a clock of its own, and how often it gave up."""

    def __init__(self, settings: RollbackSettings = SETTINGS) -> None:
        self.clock = Clock()
        self.causes: list[Cause] = []
        self.watch = RollbackWatch(settings, clock=self.clock, give_up=self.causes.append)

    @property
    def given_up(self) -> int:
        return len(self.causes)

    def note(self, *, is_bad: bool) -> None:
        """Record a request that is routed, or refused with 500."""
        if is_bad:
            self.watch.refused(500)
        else:
            self.watch.routed()

    def refused(self, *, is_regression: bool | None, error: str = "none left") -> None:
        """Record a request refused with 429; None if its dry run has no result."""
        self.watch.refused(429)
        if self.watch.take_dry_run() and is_regression is not None:
            self.watch.judged(
                is_regression=is_regression, status=429, reason="rejected", error=error
            )

    def requests(self, good: int, bad: int, *, over_seconds: float = 0.0) -> None:
        """Good ones first, then bad ones, evenly over the time."""
        for is_bad in [False] * good + [True] * bad:
            self.clock.now += over_seconds / (good + bad)
            self.note(is_bad=is_bad)


@pytest.mark.parametrize(
    ("before", "after", "given_up"),
    [
        pytest.param((1000, 0), (94, 6), 1, id="6 % of 100, none before"),
        pytest.param((1000, 0), (95, 5), 0, id="5 % of 100 is not more than 5 %"),
        pytest.param((1000, 0), (93, 6), 0, id="6 of 99 are too few to judge"),
        pytest.param((1000, 0), (0, 100), 1, id="all of 100"),
        pytest.param((970, 30), (90, 10), 1, id="10 % after 3 %, more than three times"),
        pytest.param((960, 40), (88, 12), 0, id="12 % after 4 % is just three times"),
        pytest.param((0, 50), (0, 200), 0, id="all, as before"),
        pytest.param((0, 0), (94, 6), 1, id="nothing before"),
    ],
)
def test_reload_is_taken_back_if_own_failures_jump(
    before: tuple[int, int], after: tuple[int, int], given_up: int
) -> None:
    watched = Watched()
    watched.requests(*before)
    watched.watch.reloaded()
    watched.requests(*after)
    assert watched.given_up == given_up


def test_reload_is_taken_back_once() -> None:
    watched = Watched()
    watched.watch.reloaded()
    watched.requests(0, 1000)
    assert watched.given_up == 1
    watched.watch.reloaded()
    watched.requests(0, 1000)
    assert watched.given_up == 1  # all failed before this one, too


def test_failures_without_a_reload_mean_nothing() -> None:
    watched = Watched()
    watched.requests(0, 1000)
    assert watched.given_up == 0


def test_failures_long_after_the_reload_mean_nothing() -> None:
    watched = Watched()
    watched.watch.reloaded()
    watched.clock.now += 60.5
    watched.requests(0, 1000)
    assert watched.given_up == 0


def test_failures_within_the_time_count_up_to_its_end() -> None:
    watched = Watched()
    watched.watch.reloaded()
    watched.requests(99, 0, over_seconds=59)
    watched.requests(0, 6)
    assert watched.given_up == 1


def test_what_was_longer_ago_than_five_minutes_is_forgotten() -> None:
    watched = Watched()
    watched.requests(0, 1000)
    watched.clock.now += 320
    watched.requests(1000, 0)
    watched.watch.reloaded()
    watched.requests(0, 100)
    assert watched.given_up == 1


def test_what_was_within_five_minutes_counts_though_it_is_quiet_since() -> None:
    watched = Watched()
    watched.requests(0, 1000)
    watched.clock.now += 280
    watched.watch.reloaded()
    watched.requests(0, 200)
    assert watched.given_up == 0


def test_limits_are_settings() -> None:
    watched = Watched(RollbackSettings(failed_share=0.5, requests=4, within_seconds=1))
    watched.watch.reloaded()
    watched.requests(2, 2)
    assert watched.given_up == 0
    watched.requests(0, 1)
    assert watched.given_up == 1


@pytest.mark.parametrize("status", [400, 429, 499])
def test_only_statuses_from_500_on_are_own_failures(status: int) -> None:
    watched = Watched(RollbackSettings(requests=1))
    watched.watch.reloaded()
    watched.watch.refused(status)
    assert watched.given_up == 0
    watched.watch.refused(500)
    assert watched.causes == [{"failures": 1, "requests": 2}]


@pytest.mark.parametrize(
    ("routed", "unjudged", "not_regressed", "regressed", "given_up"),
    [
        pytest.param(0, 0, 0, 9, 0, id="nine are too few"),
        pytest.param(0, 0, 0, 10, 1, id="ten, and no other request"),
        pytest.param(9, 0, 0, 10, 1, id="10 of 19 are more than half"),
        pytest.param(10, 0, 0, 10, 0, id="10 of 20 are just half"),
        pytest.param(5, 0, 5, 11, 1, id="11 of 21, the others routed or refused by both"),
        pytest.param(0, 0, 90, 10, 0, id="10 of 100 that both refuse: a full pool"),
        pytest.param(0, 80, 0, 10, 1, id="those that could not be judged do not count"),
        pytest.param(0, 0, 100, 200, 0, id="there are no more than 100 dry runs"),
    ],
)
def test_reload_is_taken_back_if_most_requests_are_regressions(
    routed: int, unjudged: int, not_regressed: int, regressed: int, given_up: int
) -> None:
    watched = Watched()
    watched.watch.reloaded()
    watched.requests(routed, 0)
    for results, count in ((None, unjudged), (False, not_regressed), (True, regressed)):
        for _ in range(count):
            watched.refused(is_regression=results)
    assert watched.given_up == given_up


def test_cause_tells_of_the_first_regression() -> None:
    watched = Watched(RollbackSettings(regressions=2))
    watched.watch.reloaded()
    watched.requests(1, 0)
    with capture_logs() as logs:
        watched.refused(is_regression=False, error="by both")
        watched.refused(is_regression=True, error="the filter a")
        watched.refused(is_regression=True, error="later")
        watched.refused(is_regression=True, error="later")
    first = {"status": 429, "reason": "rejected", "first_error": "the filter a"}
    assert watched.causes == [{"regressions": 3, "requests": 5, **first}]
    (line,) = logs  # once per reload, also if it is not taken back
    assert line["log_level"] == "warning"
    assert first.items() <= line.items()


def test_dry_runs_are_wanted_for_a_minute_after_each_reload() -> None:
    watched = Watched(RollbackSettings(dry_runs=2))
    watch = watched.watch
    assert not watch.take_dry_run()
    assert not watch.is_watching
    for _ in range(2):
        watch.reloaded()
        assert [watch.take_dry_run() for _ in range(3)] == [True, True, False]
        assert watch.is_watching
    watch.reloaded()
    watched.clock.now += 60
    assert watch.is_watching
    assert watch.take_dry_run()
    watched.clock.now += 0.1
    assert not watch.take_dry_run()
    assert not watch.is_watching


def test_dry_run_that_ends_after_the_watch_means_nothing() -> None:
    watched = Watched(RollbackSettings(regressions=1))
    watched.watch.reloaded()
    watched.refused(is_regression=True)
    watched.refused(is_regression=True)
    assert watched.given_up == 1
    assert not watched.watch.is_watching
    watched.watch.judged(is_regression=True, status=429, reason="", error="")
    assert watched.given_up == 1


outcomes = st.lists(st.booleans(), max_size=300)


def share(failures: Iterable[bool]) -> float:
    listed = list(failures)
    return sum(listed) / len(listed) if listed else 0.0


@given(before=outcomes, after=outcomes)
def test_it_gives_up_at_the_first_request_at_which_all_limits_are_passed(
    before: list[bool], after: list[bool]
) -> None:
    watched = Watched(RollbackSettings(requests=20))
    for failed in before:
        watched.note(is_bad=failed)
    watched.watch.reloaded()
    due = False
    for count, failed in enumerate(after, start=1):
        watched.note(is_bad=failed)
        now = share(after[:count])
        due = due or (failed and count >= 20 and now > 0.05 and now > 3 * share(before))
        assert watched.given_up == due


@given(st.lists(st.sampled_from(["routed", "unjudged", "same", "regression"]), max_size=60))
def test_it_gives_up_at_the_first_regression_at_which_they_are_many_and_most(
    requests: list[str],
) -> None:
    watched = Watched(RollbackSettings(regressions=3, dry_runs=20))
    watched.watch.reloaded()
    results = {"unjudged": None, "same": False, "regression": True}
    counts = {"routed": 0, "same": 0, "regression": 0}
    dry_runs, due = 0, False
    for each in requests:
        if each == "routed":
            watched.note(is_bad=False)
            counts[each] += 1
        else:
            watched.refused(is_regression=results[each])
            dry_runs += 1
            if dry_runs <= 20 and each in counts:
                counts[each] += 1
                many = counts["regression"] >= 3
                most = counts["regression"] > sum(counts.values()) / 2
                due = due or (each == "regression" and many and most)
        assert watched.given_up == due
