"""Work grows linearly: an input four times as long takes about four times as many calls."""

import pytest

from tools.fuzz.growth import MAX_TIMES, STEP, calls, quiet
from tools.fuzz.growth_cases import CASES, Case, Work

SIZE = 60


def times_the_calls(case: Case) -> float:
    with quiet():
        return calls(case(STEP * SIZE)) / calls(case(SIZE))


@pytest.mark.parametrize("name", CASES)
def test_work_grows_as_the_input_does(name: str) -> None:
    assert times_the_calls(CASES[name]) < MAX_TIMES


def test_growth_does_not_depend_on_earlier_runs() -> None:
    times = [times_the_calls(CASES["stream: headers"]) for _ in range(10)]
    assert max(times) < MAX_TIMES
    assert max(times) < 1.5 * min(times)


def test_work_that_grows_faster_is_seen() -> None:
    def case(size: int) -> Work:
        return lambda: [abs(each) for _ in range(size) for each in range(size)]

    assert times_the_calls(case) > MAX_TIMES
