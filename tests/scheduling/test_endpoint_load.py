"""The formula of epp/scheduling/load.py, row by row and over random histories."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import EndpointLoad, Reservation, ReservationError
from epp.scheduling.load import _MAX_LOG_ENTRIES, SCRAPE_MARGIN_SECONDS


def loaded(
    *, waiting: float, running: float, started: int = 0, ended: int = 0, slots: float = 0
) -> EndpointLoad:
    """A scrape, then requests started and ended; ``ended`` ones were started long before it."""
    load = EndpointLoad()
    load.slots = slots
    for _ in range(ended):
        load.start(0.0)
    load.observe(waiting=waiting, running=running, kv_cache_usage=0.0, requested_at=10.0)
    for _ in range(started):
        load.start(11.0)
    for _ in range(ended):
        load.end(11.0)
    return load


@pytest.mark.parametrize(
    ("load", "want"),
    [
        pytest.param(loaded(waiting=2, running=3), (2, 3), id="nothing unseen: the page"),
        # unseen 4, slots unknown: free 0, so all of it waits
        pytest.param(
            loaded(waiting=0, running=3, started=4), (4, 3), id="slots unknown: unseen waits"
        ),
        # unseen 4, free = 5 - 3 = 2
        pytest.param(
            loaded(waiting=0, running=3, started=4, slots=5), (2, 5), id="unseen fills free slots"
        ),
        # unseen 1, free 2
        pytest.param(loaded(waiting=0, running=3, started=1, slots=5), (0, 4), id="unseen runs"),
        # free = 5 - 6 < 0 counts as 0
        pytest.param(
            loaded(waiting=1, running=6, started=2, slots=5), (3, 6), id="more running than slots"
        ),
        # unseen -2: from waiting first, 3 - 2
        pytest.param(loaded(waiting=3, running=4, ended=2), (1, 4), id="ended: taken from waiting"),
        # unseen -3: waiting 1 -> 0, then 4 - 2
        pytest.param(loaded(waiting=1, running=4, ended=3), (0, 2), id="then from running"),
        # total = max(0, 0 + 1 - 3) = 0
        pytest.param(loaded(waiting=0, running=1, ended=3), (0, 0), id="never below nothing"),
        # started 2, ended 2 cancel out
        pytest.param(
            loaded(waiting=1, running=1, started=2, ended=2), (1, 1), id="as many ended as started"
        ),
        # total = max(0, 0.5 + 2.5 + 1): faded pages are fractions
        pytest.param(
            loaded(waiting=0.5, running=2.5, started=1, slots=3), (1.0, 3.0), id="fractions"
        ),
    ],
)
def test_effective_load(load: EndpointLoad, want: tuple[float, float]) -> None:
    assert (load.waiting_requests, load.running_requests) == want


def test_what_is_in_flight_from_here_counts_though_the_page_shows_nothing() -> None:
    load = EndpointLoad()
    for _ in range(3):
        load.start(0.0)
    load.observe(waiting=0, running=0, kv_cache_usage=0.5, requested_at=100.0)
    assert (load.waiting_requests, load.running_requests, load.kv_cache_usage) == (3, 0, 0.5)


@pytest.mark.parametrize(
    ("age", "want"),
    [
        pytest.param(SCRAPE_MARGIN_SECONDS * 2, 5, id="older than the margin: on the page"),
        pytest.param(SCRAPE_MARGIN_SECONDS / 2, 6, id="within the margin: perhaps not on it"),
        pytest.param(-1.0, 6, id="after the GET: not on it"),
    ],
)
def test_a_page_covers_what_is_older_than_the_margin(age: float, want: int) -> None:
    load = EndpointLoad()
    load.start(10.0 - age)
    load.observe(waiting=0, running=5, kv_cache_usage=0.0, requested_at=10.0)
    assert load.waiting_requests + load.running_requests == want


def test_slots_are_learnt_only_while_others_wait() -> None:
    load = EndpointLoad()
    for waiting, running, want in [(0, 9, 0), (1, 4, 4), (0, 7, 4), (2, 3, 4), (5, 6, 6)]:
        load.observe(waiting=waiting, running=running, kv_cache_usage=0.0, requested_at=0.0)
        assert load.slots == want


def reported(
    *,
    page: tuple[float, float],
    waiting: float,
    ours: int = 0,
    ended: int = 0,
    just_started: int = 0,
    slots: float = 0,
) -> EndpointLoad:
    """A scrape of ``page`` with ``ours`` in it, then a report of ``waiting`` requests alone.

    ``ended`` of ours end in between, and ``just_started`` are too new to be in the report.
    """
    load = EndpointLoad()
    load.slots = slots
    for _ in range(ours):
        load.start(0.0)
    load.observe(waiting=page[0], running=page[1], kv_cache_usage=0.0, requested_at=10.0)
    for _ in range(ended):
        load.end(11.0)
    for _ in range(just_started):
        load.start(12.0)
    load.observe(waiting=waiting, running=None, kv_cache_usage=0.0, requested_at=12.0)
    return load


@pytest.mark.parametrize(
    ("load", "want"),
    [
        pytest.param(reported(page=(0, 0), waiting=0, ours=3), (0, 3), id="ours run"),
        pytest.param(reported(page=(3, 0), waiting=1, ours=3), (1, 2), id="ours run or wait"),
        # Running is at least 0, whatever of others waits.
        pytest.param(reported(page=(0, 0), waiting=9, ours=3), (9, 0), id="others wait"),
        pytest.param(reported(page=(0, 8), waiting=9), (9, 8), id="the scrape's still run"),
        pytest.param(reported(page=(2, 8), waiting=9, ours=10, ended=4), (9, 6), id="less ended"),
        # min(8, 8 + 2 - 2): ended ones are taken from those that waited first.
        pytest.param(
            reported(page=(2, 8), waiting=0, ours=10, ended=2), (0, 8), id="ended waiting"
        ),
        pytest.param(reported(page=(0, 1), waiting=0, ours=4, ended=4), (0, 0), id="all ended"),
        # 10 of ours are in the server and none waits, but 8 is the most that ever ran there.
        pytest.param(
            reported(page=(0, 8), waiting=0, ours=10, slots=8), (2, 8), id="no more than slots run"
        ),
        pytest.param(
            reported(page=(0, 9), waiting=0, ours=9, slots=5), (0, 9), id="but those of the scrape"
        ),
        # As after a scrape: with slots unknown they wait.
        pytest.param(
            reported(page=(0, 4), waiting=0, ours=4, just_started=2), (2, 4), id="unseen ones"
        ),
        pytest.param(
            reported(page=(0, 4), waiting=0, ours=4, just_started=2, slots=5),
            (1, 5),
            id="unseen ones fill free slots",
        ),
    ],
)
def test_running_requests_are_estimated_where_a_report_leaves_them_out(
    load: EndpointLoad, want: tuple[float, float]
) -> None:
    assert (load.waiting_requests, load.running_requests) == want


def test_queues_of_others_that_come_and_go_do_not_add_up() -> None:
    load = EndpointLoad()
    load.observe(waiting=0, running=8, kv_cache_usage=0.0, requested_at=1.0)
    for turn in range(50):
        running = load.observe(
            waiting=10 * (turn % 2), running=None, kv_cache_usage=0.0, requested_at=2.0 + turn
        )
        assert running == 8


def test_an_estimate_teaches_no_slots() -> None:
    load = EndpointLoad()
    for _ in range(9):
        load.start(0.0)
    assert load.observe(waiting=2, running=None, kv_cache_usage=0.0, requested_at=1.0) == 7
    assert load.slots == 0


def test_thinning_keeps_the_sum() -> None:
    load = EndpointLoad()
    for n in range(_MAX_LOG_ENTRIES + 500):
        load.start(n / 1000)
    assert load._log is not None
    assert len(load._log) <= _MAX_LOG_ENTRIES
    assert sum(change for _, change in load._log or ()) == load._balance == load.in_flight
    assert load.waiting_requests == _MAX_LOG_ENTRIES + 500


def test_a_reservation_is_given_back_once() -> None:
    load = EndpointLoad()
    reservation = Reservation(load, 0.0)
    assert load.in_flight == 1
    reservation.release(1.0)
    assert load.in_flight == 0
    with pytest.raises(ReservationError, match="twice"):
        reservation.release(2.0)
    with pytest.raises(ReservationError, match="cannot move"):
        reservation.move(EndpointLoad(), 2.0)


def test_a_reservation_moves_to_the_endpoint_that_served() -> None:
    chosen, served = EndpointLoad(), EndpointLoad()
    reservation = Reservation(chosen, 0.0)
    reservation.move(served, 1.0)
    reservation.move(served, 2.0)
    assert (chosen.in_flight, served.in_flight) == (0, 1)
    assert (chosen.waiting_requests, served.waiting_requests) == (0, 1)
    reservation.release(3.0)
    assert served.in_flight == 0


COUNTS = st.integers(0, 50) | st.floats(0, 50)
EVENTS = st.lists(
    st.sampled_from(["start", "start", "end"])
    | st.tuples(COUNTS, COUNTS | st.none(), st.floats(0, 3), st.booleans()),
    max_size=60,
)


@given(EVENTS, st.lists(st.floats(0, 0.1), min_size=60, max_size=60))
def test_over_all_histories(
    events: list[str | tuple[float, float | None, float, bool]], gaps: list[float]
) -> None:
    """Never below the requests in flight, never negative, and both parts add up to the total."""
    load, now = EndpointLoad(), 100.0
    for event, gap in zip(events, gaps, strict=False):
        now += gap
        if event == "start":
            load.start(now)
        elif event == "end":
            if load.in_flight:
                load.end(now)
        else:
            assert not isinstance(event, str)
            waiting, running, age, scraped = event
            if scraped or running is None:
                load.observe(
                    waiting=waiting, running=running, kv_cache_usage=0.0, requested_at=now - age
                )
            else:
                load.assume(waiting=waiting, running=running, kv_cache_usage=0.0)
        values = (load.waiting_requests, load.running_requests, load.kv_cache_usage, load.in_flight)
        assert load.record() == load.values == values
        assert load._balance == sum(change for _, change in load._log or ())
        on_page = load._page_waiting + load._page_running
        total = max(load.in_flight, on_page + load._balance)
        assert load.waiting_requests >= 0
        assert load.running_requests >= -1e-9  # fractions of faded pages
        assert load.waiting_requests + load.running_requests == pytest.approx(total, abs=1e-9)
        assert load.waiting_requests + load.running_requests >= load.in_flight - 1e-9


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        pytest.param(0.0, 0.0, id="empty"),
        pytest.param(1.0, 1.0, id="full"),
        pytest.param(1.5, 1.0, id="more than full"),
        pytest.param(-0.5, 0.0, id="less than empty"),
        pytest.param(inf, 1.0, id="without end"),
        pytest.param(nan, 1.0, id="no number"),
    ],
)
def test_usage_of_the_cache_is_a_fraction_whatever_the_page_says(usage: float, want: float) -> None:
    load = EndpointLoad()
    load.assume(waiting=0, running=0, kv_cache_usage=usage)
    assert load.kv_cache_usage == want


def test_observers_see_each_scrape_applied_and_nothing_else() -> None:
    load = EndpointLoad()
    seen: list[float] = []
    load.observers.append(lambda: seen.append(load.waiting_requests))
    load.start(1.0)
    load.assume(waiting=9, running=0, kv_cache_usage=0.0)
    assert seen == []
    load.observe(waiting=3, running=1, kv_cache_usage=0.0, requested_at=2.0)
    load.observe(waiting=4, running=None, kv_cache_usage=0.0, requested_at=2.5, is_report=True)
    load.observe(waiting=5, running=1, kv_cache_usage=0.0, requested_at=3.0)
    assert seen == [3, 5]
