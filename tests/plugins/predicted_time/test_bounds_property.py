"""For any servers, clients and clocks, predictions stay in bounds, and the fleet recovers."""

from math import inf, isfinite

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from plugins.predicted_time.fleets import TRUSTING, Fleet

from epp_plugins.predicted_time import FleetModel, PredictedRequest

KEYS = ("a", "b", "c")
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(KEYS), st.floats(-10.0, 1e7)),
    st.tuples(st.just("first"), st.integers(0, 30), st.just(0.0)),
    st.tuples(st.just("end"), st.integers(0, 30), st.just(0.0)),
    st.tuples(st.just("fail"), st.integers(0, 30), st.just(0.0)),
    # Clocks jump in both directions.
    st.tuples(st.just("pass"), st.just(0), st.one_of(st.floats(0.0, 1.0), st.floats(-1e4, 1e6))),
    st.tuples(st.just("waiting"), st.sampled_from(KEYS), NUMBERS),
    st.tuples(st.just("running"), st.sampled_from(KEYS), NUMBERS),
    st.tuples(st.just("usage"), st.sampled_from(KEYS), NUMBERS),
    st.tuples(st.just("reserve"), st.sampled_from(KEYS), st.floats(0.0, 1e6)),
    st.tuples(st.just("release"), st.just(0), st.just(0.0)),
    st.tuples(st.just("remove"), st.sampled_from(KEYS), st.just(0.0)),
)


class Adversary:
    """Applies the steps of a test to a model."""

    def __init__(self, model: FleetModel) -> None:
        self.model = model
        self.now = 0.0
        self.requests: list[PredictedRequest] = []

    def do(self, what: str, which: object, amount: float) -> None:
        model, key = self.model, str(which)
        if what == "send":
            self.requests.append(model.sent(key, amount, self.now))
        elif what == "pass":
            self.now += amount
        elif what in {"waiting", "running", "usage"}:
            values = {"waiting": 2.0, "running": 3.0, "usage": 0.95} | {what: amount}
            model.scraped(
                key,
                waiting=values["waiting"],
                running=values["running"],
                kv_usage=values["usage"],
                now=self.now,
            )
        elif what == "reserve":
            model.reserve(key, amount, self.now)
        elif what == "release":
            model.release_reservations()
        elif what == "remove":
            model.remove(key)
        elif self.requests:
            assert isinstance(which, int)
            request = self.requests[which % len(self.requests)]
            call = {"first": model.first_token, "end": model.ended, "fail": model.failed}[what]
            call(request, self.now)


@example(steps=[("send", "a", 16724.0), ("reserve", "b", 118507.0), ("send", "b", 0.0)])
@given(st.lists(STEPS, max_size=80))
def test_costs_and_counts_stay_sane(steps: list[tuple[str, object, float]]) -> None:
    adversary = Adversary(FleetModel(TRUSTING))
    model = adversary.model
    for step in steps:
        adversary.do(*step)
        table = model.table(KEYS, 1000.0, adversary.now)
        for each in table.predictions({}, 1000.0, {}):
            # 64 services of the one term, half of 64 of the other, up to rounding.
            most, rounding = 96.0 * each.service, 1e-6 * each.cost
            delay = each.delay_to_others
            assert each.wait == inf or -rounding <= delay <= most + rounding
        for key, wait, cost in zip(KEYS, table.waits, table.costs(), strict=True):
            endpoint = model.endpoint(key)
            assert wait >= 0.0
            is_excluded = endpoint.excluded_until > adversary.now
            assert isfinite(cost) or is_excluded, (key, cost)
            assert cost >= 0.0
            assert 0.25 <= model.slowness(endpoint) <= 16.0
            assert len(endpoint.pending) + endpoint.decoding == len(endpoint.requests)
            total = sum(each.units for each in endpoint.pending)
            assert abs(total - endpoint.pending_units) <= 1e-6 * (1.0 + total)
        assert table.mean_service > 0.0
        assert isfinite(model.trust.error)
    model.release_reservations()
    for request in adversary.requests:
        model.ended(request, adversary.now)
        assert not request.is_pending
    adversary.now += 1e9
    for key in KEYS:
        endpoint = model.endpoint(key)
        assert [*endpoint.requests, *endpoint.pending, *endpoint.unstarted] == []
        model.scraped(key, waiting=0, running=0, kv_usage=0.0, now=adversary.now)
        assert model.wait(key, adversary.now) == 0.0


# Without shrinking: each example serves 250 requests.
@settings(max_examples=5, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(STEPS, min_size=20, max_size=60), st.integers(0, 2**16))
def test_the_fleet_recovers_from_any_past(
    steps: list[tuple[str, object, float]], seed: int
) -> None:
    fleet = Fleet(dict.fromkeys(KEYS, 1.0), lambda tokens: 0.03 + tokens / 1e4, seed=seed)
    adversary = Adversary(fleet.model)
    for step in steps:
        adversary.do(*step)
    fleet.model.release_reservations()
    for request in adversary.requests:
        fleet.model.ended(request, adversary.now)
    for key in KEYS:
        fleet.model.scraped(key, waiting=0, running=0, kv_usage=0.0, now=adversary.now)
    fleet.start_at(max(adversary.now, 0.0) + 60.0)
    fleet.run(250, 5.0, (200.0, 1000.0, 3000.0))
    late = sorted(seconds for _, seconds in fleet.served[-120:])
    # The service of 3000 tokens takes 0.33 s, and 3 servers are 30 % busy.
    assert late[len(late) * 9 // 10] < 1.0


def test_a_server_that_lies_is_found_out_when_it_has_to_work() -> None:
    fleet = Fleet({"a": 1.0, "b": 1.0, "c": 1.0, "liar": 0.0}, lambda tokens: 0.03 + tokens / 1e4)
    fleet.run(600, 8.0, (200.0, 1000.0, 3000.0))
    assert fleet.share("liar", 300) > 0.8  # it answers at once
    fleet.slowness["liar"] = 4.0
    fleet.run(200, 8.0, (200.0, 1000.0, 3000.0))
    assert fleet.share("liar", 100) < 0.15
    # Its prompts take up to 1.3 s each. Without an eye on late ones it was 31 s.
    assert max(seconds for _, seconds in fleet.served[-200:]) < 6.0


def test_a_client_that_aborts_everything_teaches_nothing() -> None:
    fleet = Fleet({"a": 1.0, "b": 1.0}, lambda tokens: 0.03 + tokens / 1e4)
    fleet.run(200, 5.0, (200.0, 1000.0, 3000.0))
    fleet.pass_time(30.0)
    model = fleet.model
    before = model.state()
    for number in range(500):
        request = model.sent("ab"[number % 2], 1e5, fleet.now)
        model.ended(request, fleet.now + 0.01)
    after = model.state()
    assert (after.serial, after.in_slots, after.endpoints) == (
        before.serial,
        before.in_slots,
        before.endpoints,
    )
    assert [model.wait(key, fleet.now + 0.01) for key in "ab"] == [0.0, 0.0]


def test_exclusion_ends_after_the_clock_has_jumped_back() -> None:
    model = FleetModel(TRUSTING)
    model.failed(model.sent("a", 0.0, 1e6), 1e6)
    assert model.table(("a",), 1000.0, 1e6).costs() == [inf]
    assert model.table(("a",), 1000.0, 0.0).costs() != [inf]


@pytest.mark.parametrize("is_serial", [True, False], ids=["serial", "slots"])
def test_there_is_room_again_after_the_clock_has_jumped_back(is_serial: bool) -> None:
    model = FleetModel(TRUSTING)
    model.learner.mode.is_serial = is_serial
    model.failed(model.sent("a", 0.0, 1e6), 1e6)
    assert not model.has_room("a", 1e6)
    assert model.has_room("a", 1e6 + 1.0)
    assert model.has_room("a", 0.0)
