"""When a reload is taken back: too many own failures, many more than before."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config import RollbackSettings, RollbackWatch

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
        self.given_up = 0
        self.watch = RollbackWatch(settings, clock=self.clock, give_up=self._count)

    def _count(self) -> None:
        self.given_up += 1

    def requests(self, good: int, bad: int, *, over_seconds: float = 0.0) -> None:
        """Good ones first, then bad ones, evenly over the time."""
        for is_bad in [False] * good + [True] * bad:
            self.clock.now += over_seconds / (good + bad)
            self.watch.note(is_bad)


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
        watched.watch.note(failed)
    watched.watch.reloaded()
    due = False
    for count, failed in enumerate(after, start=1):
        watched.watch.note(failed)
        now = share(after[:count])
        due = due or (failed and count >= 20 and now > 0.05 and now > 3 * share(before))
        assert watched.given_up == due
