"""Columns have the values of their endpoints' loads at any time."""

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import Endpoint, LoadColumns, load_columns
from epp.scheduling.load_values import TIMES_ASKED
from epp.testing import make_endpoint


def make_pool(count: int = 3) -> tuple[Endpoint, ...]:
    return tuple(make_endpoint(f"default/{n}", waiting_requests=n) for n in range(count))


def asked_often(pool: tuple[Endpoint, ...]) -> LoadColumns:
    for _ in range(TIMES_ASKED - 1):
        assert load_columns(pool) is None
    columns = load_columns(pool)
    assert columns is not None
    return columns


def check(columns: LoadColumns, pool: tuple[Endpoint, ...]) -> None:
    loads = [each.load for each in pool]
    assert columns.waiting_requests == [load.waiting_requests for load in loads]
    assert columns.free_cache == [1.0 - load.kv_cache_usage for load in loads]
    assert columns.values == [
        (load.waiting_requests, load.running_requests, load.kv_cache_usage, load.in_flight)
        for load in loads
    ]


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["start", "end", "share", "usage"])
        | st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0.0, 1.0), st.booleans()),
    ),
    max_size=40,
)


@given(EVENTS)
def test_they_are_up_to_date_after_every_change_of_a_load(
    events: list[tuple[int, str | tuple[int, int, float, bool]]],
) -> None:
    pool = make_pool()
    columns = asked_often(pool)
    for now, (place, event) in enumerate(events):
        load = pool[place].load
        if event == "start":
            load.start(now)
        elif event == "end":
            if load.own_in_flight:
                load.end(now)
        elif event == "share":
            load.share("other", now % 5, now)
        elif event == "usage":
            load.assume_kv_cache_usage(now / 40)
        else:
            assert not isinstance(event, str)
            waiting, running, usage, is_scraped = event
            if is_scraped:
                load.observe(
                    waiting=waiting, running=running, kv_cache_usage=usage, requested_at=now
                )
            else:
                load.assume(waiting=waiting, running=running, kv_cache_usage=usage)
        assert load_columns(pool) is columns
        check(columns, pool)


def test_endpoints_chosen_anew_for_each_request_have_none() -> None:
    pool = make_pool()
    for _ in range(TIMES_ASKED):
        survivors = tuple(list(pool)[:2])
        assert [load_columns(survivors) for _ in range(3)] == [None] * 3


def test_a_list_which_may_change_has_none() -> None:
    pool = list(make_pool())
    assert [load_columns(pool) for _ in range(2 * TIMES_ASKED)] == [None] * 2 * TIMES_ASKED
    assert load_columns(()) is None


def test_a_load_belongs_to_the_columns_made_last() -> None:
    pool = make_pool()
    first, some = asked_often(pool), pool[1:]
    other = asked_often(some)
    pool[1].load.start(1.0)
    check(other, some)
    again = asked_often(pool)
    assert again is not first
    assert load_columns(some) is None
    check(again, pool)


def test_an_endpoint_that_left_is_freed() -> None:
    pool = make_pool()
    asked_often(pool)
    gone = weakref.ref(pool[2])
    pool = pool[:2]
    check(asked_often(pool), pool)
    gc.collect()
    assert gone() is None
