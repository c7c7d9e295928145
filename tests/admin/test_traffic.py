"""Totals, rates and quantiles of the live page."""

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.admin.live.pool_reader import ConfigReading, EndpointReading, PoolReading
from epp.admin.live.request_tally import EndpointTally, Tallies
from epp.admin.live.traffic import TrafficReader, difference, quantile
from epp.admin.live.window import WINDOW_SECONDS, Window
from epp.observability import Metrics
from epp.scheduling import Endpoint

BOUNDS = (0.1, 0.5, 1.0)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        pytest.param([0, 0, 0, 0], 0.5, None, id="none"),
        pytest.param([10, 0, 0, 0], 0.5, 0.05, id="the middle of the first bucket"),
        pytest.param([0, 10, 0, 0], 0.5, 0.3, id="the middle of another bucket"),
        pytest.param([5, 5, 0, 0], 0.9, 0.1 + 0.4 * 0.8, id="interpolated"),
        pytest.param([0, 0, 0, 3], 0.5, 1.0, id="beyond the last bound"),
    ],
)
def test_a_quantile_of_a_histogram(counts: list[int], share: float, expected: float) -> None:
    assert quantile(BOUNDS, counts, share) == (expected and pytest.approx(expected))


@given(
    values=st.lists(st.floats(0.0, 0.999), min_size=1, max_size=50),
    share=st.sampled_from([0.1, 0.5, 0.9, 0.99]),
)
def test_a_quantile_is_in_the_bucket_of_the_exact_one(values: list[float], share: float) -> None:
    counts = [0] * (len(BOUNDS) + 1)
    for each in values:
        counts[bisect_left(BOUNDS, each)] += 1
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    bucket = bisect_left(BOUNDS, exact)
    found = quantile(BOUNDS, counts, share)
    assert found is not None
    low = (0.0, *BOUNDS)[bucket]
    assert low <= found <= BOUNDS[bucket] + 1e-9


def test_label_sets_that_left_the_page_count_as_nothing() -> None:
    assert difference([5, 1], [3, 4]) == [2, 0]


# --- the window ----------------------------------------------------------------------------------


class Pool:
    """A pool whose readings the test makes, one a second."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.window = Window(TrafficReader(self.metrics))
        self.endpoints = [Endpoint(f"default/{n}", f"10.0.0.{n}:80") for n in range(2)]
        self.at = 0.0

    def second(self, tallies: Tallies | None = None, in_flight: tuple[int, int] = (0, 0)) -> None:
        self.at += 1.0
        self.window.add(
            PoolReading(
                at=self.at,
                endpoints=tuple(
                    EndpointReading(e, e.metrics, n, 0.0, "healthy", "", None, 1.0, "")
                    for e, n in zip(self.endpoints, in_flight, strict=True)
                ),
                tallies=tallies or {},
                waiting=0,
                blocked="",
                in_flight=sum(in_flight),
                is_panicking=False,
                why_none_serves="",
                config=ConfigReading("", "", ""),
            )
        )

    def requests(self, count: int, model: str = "m") -> None:
        for _ in range(count):
            self.metrics.for_request(model, model, "", 0).total.inc()


def tally(
    ended: int, failed: int = 0, seconds: float = 0.0, first: float | None = None
) -> EndpointTally:
    made = EndpointTally()
    made.ended, made.failed, made.seconds = ended, failed, seconds
    made.first_seconds = [] if first is None else [first]
    return made


def test_rates_of_the_last_second_over_all_label_sets() -> None:
    pool = Pool()
    pool.requests(7)  # before anybody looked
    pool.second()
    pool.requests(3)
    pool.requests(2, model="other")
    pool.metrics.for_refusal("m", "m", "", 0).error("Internal")
    pool.second()
    point = pool.window.point(1000.04)
    assert (point.at, point.requests_per_second, point.errors_per_second) == (1000.0, 5.0, 1.0)
    assert pool.window.errors() == {"Internal": 1}
    assert pool.window.requests() == 5


def test_the_first_reading_has_no_rates() -> None:
    pool = Pool()
    pool.requests(7)
    pool.second()
    assert pool.window.point(0.0).requests_per_second == 0.0
    assert pool.window.endpoint_rates() == {}


def test_what_is_older_than_the_window_is_forgotten() -> None:
    pool = Pool()
    pool.second()
    pool.requests(5)
    pool.metrics.for_refusal("m", "m", "", 0).error("Internal")
    for _ in range(WINDOW_SECONDS + 1):
        pool.second()
    assert pool.window.requests() == 0
    assert pool.window.errors() == {}


def test_first_byte_times_are_those_of_streamed_bodies() -> None:
    pool = Pool()
    pool.second()
    response = pool.metrics.for_request("m", "m", "", 0).response
    response.first_byte[False].observe(50.0)
    response.first_byte[True].observe(0.15)
    pool.second({pool.endpoints[0]: tally(1, first=9.0)})
    point = pool.window.point(0.0)
    assert pool.window.sees_bodies
    assert point.first_byte_p50 is not None
    assert 0.1 <= point.first_byte_p50 <= 0.2


def test_without_bodies_the_heads_of_responses_have_to_do() -> None:
    pool = Pool()
    pool.second()
    first, second = pool.endpoints
    pool.second({first: tally(1, first=0.2), second: tally(1, first=0.4)})
    point = pool.window.point(0.0)
    assert not pool.window.sees_bodies
    assert (point.first_byte_p50, point.first_byte_p90) == (0.4, 0.4)


def test_shares_count_what_has_ended_and_what_is_in_flight() -> None:
    pool = Pool()
    first, second = pool.endpoints
    pool.second(in_flight=(1, 0))
    # 6 ended there and 3 more are in flight, so 9 were sent; the other one got 1.
    pool.second({first: tally(6, failed=2, seconds=3.0, first=0.1)}, in_flight=(4, 1))
    rates = pool.window.endpoint_rates()
    assert rates[first]._asdict() == {
        "picked_share": 0.9,
        "per_second": 6.0,
        "failed_per_second": 2.0,
        "seconds": 0.5,
        "first_seconds": 0.1,
    }
    assert rates[second].picked_share == 0.1
    assert rates[second].seconds is None
