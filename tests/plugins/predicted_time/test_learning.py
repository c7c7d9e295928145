"""The model learns the times of servers, which is slow, and how they batch."""

from itertools import pairwise

import pytest
from plugins.predicted_time.fleets import Fleet

from epp_plugins.predicted_time import Constants, FleetModel

TOKENS = (200.0, 1000.0, 5000.0)
FOUR = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}


def seconds(tokens: float) -> float:
    return 0.03 + 0.1 * tokens / 1000.0


def test_the_service_time_is_that_of_the_servers() -> None:
    fleet = Fleet(FOUR, seconds)
    fleet.run(400, 6.0, TOKENS)
    service = fleet.model.learner.serial
    assert service.predict(1.0, 0) == pytest.approx(0.13, rel=0.05)
    assert service.predict(5.0, 0) == pytest.approx(0.53, rel=0.05)


@pytest.mark.parametrize("factor", [0.1, 10.0], ids=["10 times faster", "10 times slower"])
def test_a_prior_that_is_ten_times_wrong_is_soon_forgotten(factor: float) -> None:
    fleet = Fleet(FOUR, lambda tokens: factor * (0.02 + 0.06 * tokens / 1000.0))
    fleet.run(200, 4.0 / factor, TOKENS)
    predicted = fleet.model.learner.serial.predict(5.0, 0)
    assert predicted == pytest.approx(factor * 0.32, rel=0.15)


def test_a_slow_server_is_known_and_gets_less() -> None:
    fleet = Fleet({**FOUR, "d": 3.0}, seconds, noise=0.2)
    fleet.run(1500, 8.0, TOKENS)
    factors = {key: each.serial.factor for key, each in fleet.model.endpoints.items()}
    assert factors["d"] > 1.6
    assert all(factors[key] == pytest.approx(1.0, abs=0.15) for key in "abc")
    assert 0.02 < fleet.share("d", 1000) < 0.17


def test_a_server_that_becomes_slow_is_noticed_and_tried_again_later() -> None:
    fleet = Fleet(FOUR, seconds)
    fleet.run(400, 8.0, TOKENS)
    fleet.slowness["d"] = 4.0
    fleet.run(400, 8.0, TOKENS)
    assert fleet.share("d", 200) < 0.15
    fleet.slowness["d"] = 1.0
    fleet.run(1200, 8.0, TOKENS)
    assert fleet.share("d", 200) > 0.15


def test_evidence_about_an_unused_server_fades() -> None:
    fleet = Fleet({**FOUR, "d": 4.0}, seconds)
    fleet.run(800, 8.0, TOKENS)
    slow = fleet.model.endpoint("d").serial
    before = slow.factor
    fleet.model.learner.compare(fleet.model.endpoints.values(), fleet.now + 300.0)
    assert before > 1.5
    assert slow.factor < 1.05


def test_the_wait_is_the_work_ahead() -> None:
    fleet = Fleet(FOUR, seconds)
    fleet.run(400, 6.0, TOKENS)
    fleet.pass_time(60.0)
    assert fleet.model.wait("a", fleet.now) == 0.0
    waits = []
    for _ in range(3):
        fleet.send("a", 5000.0)
        waits.append(fleet.model.wait("a", fleet.now))
    # Each adds its own 0.53 s.
    assert waits == pytest.approx([0.53, 1.06, 1.59], rel=0.05)
    fleet.pass_time(0.3)
    assert fleet.model.wait("a", fleet.now) == pytest.approx(1.29, rel=0.05)
    fleet.pass_time(0.3)  # the first is done, the second has had 0.07 s
    assert fleet.model.wait("a", fleet.now) == pytest.approx(0.99, rel=0.05)


def test_an_overdue_prompt_does_not_make_the_wait_less_than_that_of_the_others() -> None:
    model = FleetModel(Constants(trust_samples=0))
    model.sent("a", 1000.0, 0.0)
    model.sent("a", 1000.0, 0.0)
    # Each is predicted to take 0.02 + 0.06 s; the first has had 0.3.
    assert model.wait("a", 0.3) == pytest.approx(0.08)


@pytest.mark.parametrize("is_serial", [True, False], ids=["serial", "slots"])
def test_a_server_that_hangs_is_avoided_before_anything_has_failed(is_serial: bool) -> None:
    model = FleetModel()
    model.learner.mode.is_serial = is_serial
    model.endpoint("b")
    model.sent("a", 1000.0, 0.0)
    for now in (0.1, 0.5, 10.0):
        model.scraped("a", waiting=0, running=1, kv_usage=0.0, now=now)
    # 10 s instead of 0.08: it may take as long again.
    assert model.wait("a", 10.0) == pytest.approx(9.92)
    assert model.wait("b", 10.0) == 0.0


def test_parallel_servers_are_recognized_and_have_room_below_their_slots() -> None:
    fleet = Fleet(FOUR, lambda _: 0.2, slots=5, decode=2.0, noise=0.1)
    fleet.run(1500, 8.0, (1000.0,))
    assert not fleet.model.is_serial
    assert {each.slots for each in fleet.model.endpoints.values()} == {5.0}
    fleet.pass_time(60.0)
    for _ in range(5):
        assert fleet.model.wait("a", fleet.now) == 0.0
        assert fleet.model.has_room("a", fleet.now)
        fleet.send("a", 1000.0)
    # The first slot frees after about 0.2 s of prompt and 2 s of decode.
    assert fleet.model.wait("a", fleet.now) == pytest.approx(2.2, rel=0.1)
    endpoint = fleet.model.endpoint("a")
    endpoint.probes = False
    assert not fleet.model.has_room("a", fleet.now)
    endpoint.probes = True
    assert fleet.model.has_room("a", fleet.now)


def test_serial_servers_stay_serial() -> None:
    fleet = Fleet(FOUR, seconds, noise=0.3)
    fleet.run(1500, 9.0, TOKENS)
    assert fleet.model.is_serial


def test_a_full_server_without_a_queue_is_probed_often_at_first_and_rarely_later() -> None:
    model = FleetModel(Constants(probe_always=20, probe_share=0.02))
    for _ in range(2):
        model.scraped("a", waiting=1, running=4, kv_usage=0.0, now=0.0)
    for _ in range(4):
        model.sent("a", 100.0, 0.0)
    probes = []
    for _ in range(520):
        model.scraped("a", waiting=0, running=4, kv_usage=0.0, now=0.0)
        probes.append(model.endpoint("a").probes)
    assert sum(probes[:20]) == 20
    assert sum(probes[20:]) == 10  # 2 in 100
    model.scraped("a", waiting=0, running=5, kv_usage=0.0, now=0.0)
    assert model.endpoint("a").slots == 5.0


def test_more_slots_are_known_from_two_pages_with_a_queue_only() -> None:
    model = FleetModel()
    model.scraped("a", waiting=1, running=7, kv_usage=0.0, now=0.0)
    assert model.endpoint("a").slots == 0.0
    model.scraped("a", waiting=0, running=7, kv_usage=0.0, now=0.0)
    model.scraped("a", waiting=2, running=8, kv_usage=0.0, now=0.0)
    assert model.endpoint("a").slots == 0.0
    model.scraped("a", waiting=2, running=6, kv_usage=0.0, now=0.0)
    assert model.endpoint("a").slots == 6.0


def test_a_full_cache_in_which_nothing_waits_is_no_wait() -> None:
    model = FleetModel(Constants(trust_samples=0))
    request = model.sent("a", 0.0, 0.0)
    model.first_token(request, 1.0)
    model.ended(request, 3.0)
    model.scraped("a", waiting=0, running=9, kv_usage=0.99, now=3.0)
    assert model.wait("a", 3.0) == 0.0


def test_the_cached_share_is_the_mean_over_requests_and_bounded() -> None:
    model = FleetModel()
    for uncached, total in ((1000.0, 1000.0), (0.0, 1000.0), (250.0, 1000.0), (9.0, 0.0)):
        model.sent("a", uncached, 0.0, total_tokens=total)
    assert model.learner.cached_share == pytest.approx((0.0 + 1.0 + 0.75) / 3)
    for _ in range(5000):
        model.sent("a", -1e9, 0.0, total_tokens=1.0)
    assert model.learner.cached_share == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("usage", "pressure"),
    [(0.0, 0.0), (0.5, 1.0), (0.75, 3.0), (1.0, 11.5), (float("nan"), 0.0), (-1.0, 0.0)],
)
def test_the_pressure_on_a_cache_is_what_is_in_use_over_what_is_not(
    usage: float, pressure: float
) -> None:
    model = FleetModel()
    model.scraped("a", waiting=0, running=1, kv_usage=usage, now=0.0)
    assert model.endpoint("a").pressure == pytest.approx(pressure)


def test_requests_that_are_held_count_as_delayed() -> None:
    model = FleetModel()
    model.endpoint("a")
    (before,) = model.table(("a",), 1000.0, 0.0).costs()
    for _ in range(300):
        model.learner.held(0.16)
    (after,) = model.table(("a",), 1000.0, 0.0).costs()
    # x = x' = 0.08 s, held for 0.16 s, so Q = 2: 2 * 2 * (1 + 2) services more.
    assert before == pytest.approx(0.08)
    assert after == pytest.approx(0.08 * 13.0, rel=0.02)


@pytest.mark.parametrize("seconds", [-5.0, 1e12, float("inf")], ids=["jump back", "long", "inf"])
def test_a_clock_that_jumps_cannot_spoil_the_mean_time_for_which_requests_are_held(
    seconds: float,
) -> None:
    model = FleetModel()
    model.learner.held(seconds)
    assert 0.0 <= model.learner.mean_held <= 20.0
    for _ in range(600):
        model.learner.held(0.0)
    assert model.learner.mean_held < 1e-3


def test_a_full_cache_is_a_wait() -> None:
    model = FleetModel(Constants(trust_samples=0))
    request = model.sent("a", 0.0, 0.0)
    model.first_token(request, 1.0)
    model.ended(request, 3.0)  # a decode of 2 s
    waits = []
    for usage in (0.9, 0.925, 0.95, 1.0):
        model.scraped("a", waiting=3, running=1, kv_usage=usage, now=3.0)
        waits.append(model.wait("a", 3.0))
    # share of (waiting + 1) * 2 s / 1 decode: 0, 1/2, 1, 1
    assert waits == pytest.approx([0.0, 4.0, 8.0, 8.0])


def test_reservations_lengthen_the_wait_until_they_are_released() -> None:
    model = FleetModel()
    added = model.reserve("a", 1000.0, 0.0)
    assert added == pytest.approx(0.08)
    assert model.wait("a", 0.0) == pytest.approx(added)
    model.reserve("a", 1000.0, 0.0)
    assert model.wait("a", 0.0) == pytest.approx(2 * added)
    model.release_reservations()
    assert model.wait("a", 0.0) == 0.0


def test_a_reservation_at_a_parallel_server_takes_a_slot_for_prompt_and_decode() -> None:
    fleet = Fleet(FOUR, lambda _: 0.2, slots=5, decode=2.0)
    fleet.run(1500, 8.0, (1000.0,))
    assert fleet.model.reserve("a", 1000.0, fleet.now) == pytest.approx(2.2 / 5, rel=0.1)


def test_failures_before_the_first_token_exclude_for_twice_as_long_each_time() -> None:
    model = FleetModel()
    until = []
    now = 0.0
    for _ in range(3):
        model.failed(model.sent("a", 0.0, now), now)
        until.append(model.endpoint("a").excluded_until - now)
        now += 100.0
    assert until == [0.5, 1.0, 2.0]
    model.first_token(model.sent("a", 0.0, now), now + 0.1)
    model.failed(model.sent("a", 0.0, now), now)
    assert model.endpoint("a").excluded_until - now == 0.5


def test_an_excluded_server_costs_more_than_any_until_its_time_is_over() -> None:
    model = FleetModel()
    model.endpoint("b")
    model.failed(model.sent("a", 0.0, 0.0), 0.0)
    assert not model.has_room("a", 0.1)
    excluded, other = model.table(("a", "b"), 1000.0, 0.1).costs()
    assert excluded == float("inf")
    assert other == pytest.approx(0.08)
    assert model.table(("a", "b"), 1000.0, 0.6).costs() == pytest.approx([0.08, 0.08])


def test_a_failure_after_the_first_token_excludes_nothing() -> None:
    model = FleetModel()
    request = model.sent("a", 0.0, 0.0)
    model.first_token(request, 0.1)
    model.failed(request, 0.2)
    assert model.endpoint("a").excluded_until < 0.0


def test_affinity_counts_more_the_busier_the_fleet_is() -> None:
    model = FleetModel(Constants(trust_samples=0))
    for key in "abc":
        model.endpoint(key)

    def advantage() -> float:
        """Return what a cached prefix gains over a computation at an endpoint without a queue."""
        cached, uncached = model.table(("a", "b"), 8000.0, 0.0, {"a": 0.0}).costs()
        return uncached - cached

    gains = []
    for _ in range(6):
        gains.append(advantage())
        for key in "abc":
            model.sent(key, 2000.0, 0.0)
    assert all(later > earlier for earlier, later in pairwise(gains))


def test_what_was_learned_continues_from_its_state() -> None:
    fleet = Fleet({**FOUR, "d": 3.0}, seconds)
    fleet.run(800, 8.0, TOKENS)
    fleet.pass_time(10.0)
    fleet.model.learner.compare(fleet.model.endpoints.values(), fleet.now)
    again = FleetModel()
    again.restore(fleet.model.state(), fleet.now)
    assert again.learner.serial.predict(2.0, 1) == pytest.approx(
        fleet.model.learner.serial.predict(2.0, 1), rel=0.02
    )
    assert again.endpoint("d").serial.factor == pytest.approx(
        fleet.model.endpoint("d").serial.factor, rel=0.1
    )


def test_endpoints_of_a_saved_state_count_only_once_they_have_joined() -> None:
    fleet = Fleet({**FOUR, "d": 3.0}, seconds)
    fleet.run(800, 8.0, TOKENS)
    saved = fleet.model.state()
    again = FleetModel()
    again.endpoint("a")
    again.restore(saved, fleet.now)
    assert list(again.endpoints) == ["a"]
    assert list(again.state().endpoints) == ["a"]
    again.use(Constants(room_seconds=0.5))
    late = again.endpoint("d")
    assert late.serial.factor > 2.0
    assert late.constants.room_seconds == 0.5
    again.remove("d")
    assert again.endpoint("d").serial.factor == 1.0  # another server


def test_priors_of_0_are_no_division_by_0() -> None:
    model = FleetModel(Constants(prior_base_seconds=0.0, prior_unit_seconds=0.0, trust_samples=0))
    assert model.table(("a", "b"), 1000.0, 0.0).costs() == [0.0, 0.0]
