"""The requests of all workers count in the load of an endpoint."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.data_layer import EndpointSpec, EndpointStore
from epp.scheduling import Reservation
from epp.workers.flight_rows import ROW_BYTES, SLOTS, clear_row
from epp.workers.shared_load import SharedLoads

SPECS = [EndpointSpec(f"default/{name}", f"10.0.0.{n}:8000") for n, name in enumerate("abc")]


class Worker:
    """A pool of one worker."""

    def __init__(self, memory: memoryview, index: int, count: int) -> None:
        self.loads = SharedLoads(memory, index, count)
        self.store = EndpointStore(make_load=self.loads.make)
        self.store.add_listener(self.loads)
        self.report(SPECS)
        self.pool = self.loads.before(lambda: self.store.serving)

    def report(self, specs: list[EndpointSpec]) -> None:
        self.store.replace_endpoints("test", specs)

    def pick(self, now: float = 0.0) -> Reservation:
        """Send a request to the endpoint with the fewest in flight."""
        chosen = min(self.pool(), key=lambda each: each.load.in_flight)
        return Reservation(chosen.load, now)

    def in_flight(self) -> list[int]:
        return [each.load.in_flight for each in self.pool()]


def workers(count: int) -> tuple[memoryview, list[Worker]]:
    memory = memoryview(bytearray(count * ROW_BYTES))
    return memory, [Worker(memory, index, count) for index in range(count)]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_burst_over_all_workers_is_spread_as_by_one(count: int) -> None:
    _, made = workers(count)
    for number in range(60):
        made[number % count].pick()
    # Each decision sees all before it: 60 requests, 3 endpoints.
    assert [each.in_flight() for each in made] == [[20, 20, 20]] * count


def test_workers_that_decide_at_once_differ_by_one_request_each() -> None:
    _, made = workers(4)
    for _ in range(10):
        pools = [each.pool() for each in made]  # all look before any of them has decided
        for pool in pools:
            load = min(pool, key=lambda each: each.load.in_flight).load
            load.start(0.0)
    spread = made[0].in_flight()
    assert max(spread) - min(spread) <= 1 + len(made)


def test_the_end_of_a_request_is_seen_too() -> None:
    _, (one, other) = workers(2)
    reservations = [one.pick() for _ in range(3)]
    assert other.in_flight() == [1, 1, 1]
    for each in reservations:
        each.release(1.0)
    assert other.in_flight() == one.in_flight() == [0, 0, 0]


def test_own_requests_are_told_apart_from_those_of_others() -> None:
    _, (one, other) = workers(2)
    one.pick()
    other.pick()
    other.pick()
    assert sorted(each.load.own_in_flight for each in other.pool()) == [0, 1, 1]
    assert sorted(each.load.own_in_flight for each in one.pool()) == [0, 0, 1]


def test_a_scrape_that_has_the_requests_of_others_does_not_count_them_twice() -> None:
    _, (one, other) = workers(2)
    one.pick(now=1.0)
    (busy,) = [each for each in other.pool() if each.load.in_flight]
    assert busy.load.waiting_requests == 1
    # Requested at 2.0, so it has the request of 1.0, whenever it was that this worker looked.
    busy.load.observe(waiting=0, running=1, kv_cache_usage=0.0, requested_at=2.0)
    assert (busy.load.waiting_requests, busy.load.running_requests) == (0, 1)


def test_requests_of_a_dead_worker_count_no_more() -> None:
    memory, (one, other) = workers(2)
    for _ in range(6):
        one.pick()
    other.pick()
    assert sum(other.in_flight()) == 7
    clear_row(memory, 0)
    assert sum(other.in_flight()) == 1


def test_an_endpoint_that_leaves_takes_its_requests_along_and_frees_its_slot_at_the_last_end() -> (
    None
):
    _, (one, other) = workers(2)
    held = [one.pick() for _ in range(3)]
    for each in (one, other):
        each.report(SPECS[1:])
    assert other.in_flight() == [1, 1]
    for reservation in held:
        reservation.release(1.0)
    one.report(SPECS)
    other.report(SPECS)
    assert one.in_flight() == other.in_flight() == [0, 0, 0]
    one.pick()
    assert sum(other.in_flight()) == 1


def test_an_endpoint_that_comes_back_is_shared_again() -> None:
    _, (one, other) = workers(2)
    endpoint = one.store.serving[0]
    one.report(SPECS[1:])
    # Something else counts there, such as a grant of flow control, so its object comes back.
    endpoint.load.share("another source", 1)
    one.report(SPECS)
    assert one.store.serving[0] is endpoint
    endpoint.load.share("another source", 0)
    endpoint.load.start(0.0)
    assert other.in_flight() == [1, 0, 0]
    endpoint.load.end(0.0)
    assert other.in_flight() == [0, 0, 0]


def test_requests_that_an_endpoint_got_while_it_was_away_are_shared_when_it_comes_back() -> None:
    _, (one, other) = workers(2)
    endpoint = one.store.serving[0]
    one.report(SPECS[1:])
    endpoint.load.start(0.0)
    one.report(SPECS)
    assert other.in_flight() == [1, 0, 0]
    endpoint.load.end(0.0)
    assert other.in_flight() == [0, 0, 0]


def test_an_endpoint_that_joins_late_has_the_requests_that_others_have_sent_there() -> None:
    _, (one, other) = workers(2)
    other.report(SPECS[:2])
    for _ in range(3):
        one.pick()
    assert sum(other.in_flight()) == 2
    other.report(SPECS)
    assert other.in_flight() == [1, 1, 1]


def test_an_idle_endpoint_is_woken_by_requests_of_others() -> None:
    _, (one, other) = workers(2)
    woken: list[str] = []
    for each in one.pool():
        each.load.waiting_for_requests.append(partial(woken.append, each.name))
    other.pick()
    one.loads.look(is_thorough=True)
    assert woken == ["default/a"]


def test_more_endpoints_than_a_row_has_are_served_unshared_and_the_log_says_so() -> None:
    loads = SharedLoads(memoryview(bytearray(2 * ROW_BYTES)), 0, 2)
    store = EndpointStore(make_load=loads.make)
    store.add_listener(loads)
    specs = [EndpointSpec(f"n/{n}", f"10.0.{n >> 8}.{n & 255}:80") for n in range(SLOTS + 2)]
    with capture_logs() as logs:
        store.replace_endpoints("test", specs)
    logged = [each for each in logs if each["event"].startswith("requests to some endpoints")]
    assert len(logged) == 1
    last = loads.make(specs[-1])
    last.start(0.0)
    last.end(1.0)
    assert last.in_flight == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "remove", "add", "look", "restart"]),
        st.integers(0, 1),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_worker_counts_what_the_other_has_in_flight_at_the_endpoints_that_it_knows(
    steps: list[tuple[str, int, int]],
) -> None:
    memory, made = workers(2)
    held: list[dict[str, list[Reservation]]] = [{}, {}]
    for number, (step, index, which) in enumerate(steps):
        now = float(number)
        worker, spec = made[index], SPECS[which]
        known = {each.name: each for each in worker.store.snapshot}
        if step == "start" and spec.name in known:
            reservation = Reservation(known[spec.name].load, now)
            held[index].setdefault(spec.name, []).append(reservation)
        elif step == "end" and held[index].get(spec.name):
            held[index][spec.name].pop().release(now)
        elif step == "remove":
            worker.report([each for each in SPECS if each.name in known and each is not spec])
        elif step == "add":
            worker.report([each for each in SPECS if each.name in known or each is spec])
        elif step == "restart":
            clear_row(memory, index)
            made[index], held[index] = Worker(memory, index, 2), {}
        else:
            worker.loads.look(is_thorough=which == 0)
    for index, worker in enumerate(made):
        worker.loads.look()
        for each in worker.store.snapshot:
            own, theirs = (len(held[who].get(each.name, [])) for who in (index, 1 - index))
            assert (each.load.own_in_flight, each.load.shared_in_flight) == (own, theirs)
