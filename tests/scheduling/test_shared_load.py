"""Requests of other EPPs in the effective load of an endpoint."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import EndpointLoad


def effective(load: EndpointLoad) -> float:
    return load.waiting_requests + load.running_requests


def scraped(*, running: float, requested_at: float = 10.0) -> EndpointLoad:
    load = EndpointLoad()
    load.observe(waiting=0, running=running, kv_cache_usage=0.0, requested_at=requested_at)
    return load


def test_requests_of_others_count_like_own_ones() -> None:
    load = scraped(running=3)
    load.share("b", 2, 11.0)
    assert (effective(load), load.in_flight, load.shared_in_flight, load.own_in_flight) == (
        5,
        2,
        2,
        0,
    )
    load.start(11.0)
    assert (effective(load), load.in_flight, load.own_in_flight) == (6, 3, 1)


def test_a_number_replaces_the_last_one_of_its_source() -> None:
    load = EndpointLoad()
    for source, number in [("b", 2), ("c", 5), ("b", 1), ("b", 1)]:
        load.share(source, number, 11.0)
    assert load.shared_in_flight == 6
    assert effective(load) == 6


def test_a_source_that_ends_is_removed_at_once() -> None:
    load = EndpointLoad()
    load.share("b", 4, 11.0)
    load.share("c", 1, 11.0)
    load.share("b", 0)
    assert load.in_flight == 1
    assert load._shares == {"c": 1}


def test_a_negative_number_counts_as_none() -> None:
    load = EndpointLoad()
    load.share("b", -3, 11.0)
    load.start(11.0)
    load.share("b", -1, 11.0)
    assert (load.in_flight, load.shared_in_flight) == (1, 0)


@pytest.mark.parametrize(
    ("at", "want"),
    [
        pytest.param(11.0, 8, id="begun after the scrape: added"),
        pytest.param(9.0, 6, id="begun before it: on the page already"),
        pytest.param(None, 6, id="begun at an unknown time: taken as on the page"),
    ],
)
def test_the_time_of_a_change_says_whether_the_page_has_it(at: float | None, want: float) -> None:
    load = EndpointLoad()
    if at == 9.0:
        load.share("b", 2, at)
    load.observe(waiting=0, running=6, kv_cache_usage=0.0, requested_at=10.0)
    if at != 9.0:
        load.share("b", 2, at)
    assert effective(load) == want


def test_requests_at_an_unknown_time_are_a_lower_bound() -> None:
    load = scraped(running=1)
    load.share("b", 4)
    assert effective(load) == 4


def test_a_change_reported_late_is_settled_by_the_scrape_that_has_it() -> None:
    load = EndpointLoad()
    load.start(10.0)  # newer than the other EPP's request, which is reported after it
    load.share("b", 1, 9.5)
    load.observe(waiting=0, running=1, kv_cache_usage=0.0, requested_at=9.9)
    # The page has the request of 9.5, and not the one of 10.0.
    assert effective(load) == 2
    assert load._log is not None
    assert list(load._log) == [(10.0, 1)]


def test_requests_of_others_wake_the_scraper() -> None:
    load, woken = EndpointLoad(), []
    load.waiting_for_requests.append(lambda: woken.append(1))
    load.share("b", 0, 11.0)
    assert not woken
    load.share("b", 1, 11.0)
    assert woken == [1]
    load.share("b", 0, 11.0)
    assert woken == [1]


STEPS = st.lists(
    st.sampled_from(["start", "end"])
    | st.tuples(st.sampled_from("bcd"), st.integers(-2, 9), st.floats(0, 2) | st.none())
    | st.tuples(st.integers(0, 9), st.floats(0, 0.2)),
    max_size=60,
)


@given(STEPS)
def test_over_all_histories_both_counts_are_exact_and_nothing_is_negative(
    steps: list[Literal["start", "end"] | tuple[str, int, float | None] | tuple[int, float]],
) -> None:
    load, now, own, others = EndpointLoad(), 100.0, 0, dict[str, int]()
    for step in steps:
        now += 0.01
        match step:
            case "start":
                load.start(now)
                own += 1
            case "end":
                if own:
                    load.end(now)
                    own -= 1
            case (source, number, age):
                load.share(source, number, None if age is None else now - age)
                others[source] = max(number, 0)
            case (running, age):
                load.observe(waiting=0, running=running, kv_cache_usage=0.0, requested_at=now - age)
        assert (load.own_in_flight, load.shared_in_flight) == (own, sum(others.values()))
        log = list(load._log or ())
        assert log == sorted(log, key=lambda entry: entry[0])
        assert sum(change for _, change in log) == load._balance
        assert load.waiting_requests >= 0
        assert load.running_requests >= 0
        assert effective(load) >= load.in_flight
    for source in others:
        load.share(source, 0)
    assert (load.in_flight, load._shares) == (own, {})
