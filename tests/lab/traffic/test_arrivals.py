"""Arrival processes and rate profiles."""

import math
from itertools import islice, pairwise
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.lab.traffic import TrafficError
from epp.lab.traffic.arrivals import ArrivalProcess, RatePiece, bent, constant_rate, on_off


@pytest.mark.parametrize("cv", [0.0, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_variation(cv: float) -> None:
    process = ArrivalProcess(pieces=constant_rate(20.0), cv=cv)
    times = list(islice(process.times(Random(1)), 20_000))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # Standard error of the mean of 20,000 gaps: 0.05 * cv / sqrt(20,000).
    assert fmean(gaps) == pytest.approx(0.05, abs=5 * 0.05 * cv / math.sqrt(20_000) + 1e-9)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1, abs=1e-9)


def test_constant_arrivals_begin_at_0() -> None:
    process = ArrivalProcess(pieces=constant_rate(4.0), cv=0.0)
    assert list(islice(process.times(Random(0)), 4)) == [0.0, 0.25, 0.5, 0.75]


def test_a_ramp_gets_denser() -> None:
    ramp = ArrivalProcess(pieces=[RatePiece(10.0, 0.0, 10.0)], cv=0.0)
    times = list(ramp.times(Random(0)))
    # The area at t is t²/2: arrival n comes at sqrt(2n); 50 arrivals in all.
    assert times == pytest.approx([math.sqrt(2 * n) for n in range(50)])
    assert not ramp.is_endless


def test_stages_follow_one_another() -> None:
    stages = [RatePiece(2.0, 1.0, 1.0), RatePiece(1.0, 4.0, 4.0), RatePiece(2.0, 2.0, 0.0)]
    times = list(ArrivalProcess(pieces=stages, cv=0.0).times(Random(0)))
    # The last stage has the area 2: its second arrival comes where 2t - t²/2 = 1.
    assert times == pytest.approx([0, 1, 2, 2.25, 2.5, 2.75, 3, 3 + 2 - math.sqrt(2)])


def test_pauses_have_no_arrivals() -> None:
    process = ArrivalProcess(pieces=on_off(10.0, 1.0, 4.0), repeats=True)
    times = list(islice(process.times(Random(3)), 500))
    assert all(time % 5.0 <= 1.0 for time in times)
    assert times[-1] == pytest.approx(250, rel=0.2)  # 500 arrivals at 10 in each 5 s
    assert process.is_endless


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constant_rate(0.0), "rate 0.0 is not a number above 0"),
        (lambda: constant_rate(math.nan), "rate nan"),
        (lambda: RatePiece(1.0, -1.0, 0.0), "rate -1.0 is not a number of 0 or more"),
        (lambda: RatePiece(0.0, 1.0, 1.0), "a duration of 0 s"),
        (lambda: ArrivalProcess(pieces=[RatePiece(1.0, 0.0, 0.0)]), "rate is 0 all the time"),
        (lambda: ArrivalProcess(pieces=constant_rate(1.0), cv=-1.0), "cv -1.0"),
    ],
)
def test_impossible_arrivals_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(TrafficError, match=message):
        make()


pieces = st.lists(
    st.builds(
        RatePiece,
        st.floats(0.01, 100),
        st.floats(0, 100).map(lambda x: round(x, 3)),
        st.floats(0, 100).map(lambda x: round(x, 3)),
    ),
    min_size=1,
    max_size=5,
)


@given(pieces, st.lists(st.floats(0, 1000), max_size=30))
def test_times_ascend_within_the_profile(profile: list[RatePiece], counts: list[float]) -> None:
    counts.sort()
    times = list(bent(counts, iter(profile)))
    assert times == sorted(times)
    area = sum(piece.area for piece in profile)
    assert len(times) == sum(count < area for count in counts) or area == pytest.approx(
        counts[min(len(times), len(counts) - 1)]
    )
    end = sum(piece.seconds for piece in profile)
    assert all(0 <= time <= end * (1 + 1e-9) for time in times)
