"""The work of other endpoint pickers counts in waits, and their prompts on the server's counter."""

from math import inf, nan

import pytest
from plugins.predicted_time.test_counted import Server

from epp_plugins.predicted_time import FleetModel
from epp_plugins.predicted_time.others import MOST_PROMPTS, OthersWork, Part, PromptPart
from epp_plugins.predicted_time.service import ServiceModel


def part(*prompts: PromptPart, decoding: int = 0, idle_seconds: float = -1.0) -> Part:
    return Part(decoding, idle_seconds, 0, 0.0, list(prompts))


def prompt(number: int, age_seconds: float = 0.0, units: float = 1.0) -> PromptPart:
    return PromptPart(number, age_seconds, units)


def test_work_is_summed_over_endpoint_pickers() -> None:
    others = OthersWork()
    assert others.take("r", part(prompt(1, 0.5, 2.0), decoding=3), 10.0) == (1, 0)
    assert others.take("s", part(prompt(1, 1.0, 4.0), idle_seconds=1.5), 10.0) == (1, 0)
    assert (others.pending, others.units, others.decoding, others.requests) == (2, 6.0, 3, 5)
    assert (others.oldest_at, others.head_units, others.idle_at) == (9.0, 4.0, 8.5)
    assert others.take("r", None, 10.1) == (0, 1)
    assert (others.pending, others.decoding, others.head_units) == (1, 0, 4.0)
    others.take("s", None, 10.2)
    assert (others.requests, others.units, others.oldest_at) == (0, 0.0, inf)


def test_a_prompt_keeps_the_time_when_it_was_first_reported() -> None:
    others = OthersWork()
    others.take("r", part(prompt(1, 0.5)), 10.0)
    assert others.take("r", part(prompt(1, 0.7)), 10.1) == (0, 0)
    assert others.oldest_at == 9.5


def test_a_prompt_that_the_counter_has_shown_is_not_reported_again() -> None:
    others = OthersWork()
    others.take("r", part(prompt(1), prompt(2)), 10.0)
    first, second = others.waiting
    others.count(first, 10.4)
    assert list(others.waiting) == [second]
    assert (others.pending, others.idle_at) == (1, 10.4)
    assert others.take("r", part(prompt(1), prompt(2)), 10.5) == (0, 0)
    assert others.pending == 1
    assert others.take("r", part(), 10.6) == (0, 1)  # the second one, which no page has shown


def test_prompts_beyond_those_reported_one_by_one_are_counted() -> None:
    theirs, ours = FleetModel(), FleetModel()
    for _ in range(MOST_PROMPTS + 3):
        theirs.sent("a", 500.0, 10.0)
    part = theirs.endpoint("a").part(10.0)
    assert part is not None
    assert (len(part.prompts), part.further) == (MOST_PROMPTS, 3)
    ours.endpoint("a").share("r", part, 50.0)
    others = ours.endpoint("a").others
    assert others.pending == MOST_PROMPTS + 3
    assert others.units == pytest.approx(0.5 * others.pending)


@pytest.mark.parametrize(
    "wrong",
    [
        Part(-5, nan, -1, inf, [PromptPart(1, nan, -inf)]),
        Part(10**30, inf, 10**30, 1e300, [PromptPart(1, 1e300, 1e300), PromptPart(2, -1.0, inf)]),
    ],
)
def test_numbers_that_make_no_sense_are_bounded(wrong: Part) -> None:
    model = FleetModel()
    model.endpoint("a").share("r", wrong, 10.0)
    others = model.endpoint("a").others
    assert 0 <= others.requests < 10**7
    assert 0.0 <= others.units < 1e11
    request = model.sent("a", 100.0, 10.0)
    costs = model.table(("a", "b"), 100.0, 10.0).costs()
    assert all(cost >= 0.0 for cost in costs)
    assert request.predicted_serial >= 0.0


def test_a_wait_has_the_work_of_others() -> None:
    model = FleetModel()
    one = model.table(("a",), 1000.0, 10.0).services[0]
    model.endpoint("a").share("r", part(prompt(1), prompt(2)), 10.0)
    assert model.wait("a", 10.0) == pytest.approx(2 * one)
    assert model.wait("a", 10.0 + one) == pytest.approx(one)
    assert not model.has_room("a", 10.0)
    model.endpoint("a").share("r", None, 10.0)
    assert model.wait("a", 10.0) == 0.0


def test_the_prompt_of_another_that_is_late_delays_those_behind_it() -> None:
    model = FleetModel()
    model.endpoint("a").share("r", part(prompt(1), prompt(2)), 10.0)
    model.endpoint("b").share("r", part(prompt(1), prompt(2)), 18.0)
    assert model.wait("a", 20.0) > 5 * model.wait("b", 18.1)


def test_slots_are_taken_by_the_requests_of_others() -> None:
    model = FleetModel()
    model.learner.mode.is_serial = False
    for now in (1.0, 1.1, 1.2):
        model.scraped("a", waiting=1, running=3, kv_usage=0.0, now=now)
    endpoint = model.endpoint("a")
    assert endpoint.slots == 3
    endpoint.decode_seconds = 2.0
    endpoint.share("r", part(prompt(1), decoding=1), 10.0)
    assert model.has_room("a", 10.0)
    model.sent("a", 1000.0, 10.0)
    assert not model.has_room("a", 10.0)
    assert 0.0 < model.wait("a", 10.0) <= 1.0  # half of a decode
    waiting = model.sent("a", 1000.0, 10.0)
    assert waiting.slot_at is None
    endpoint.share("r", part(), 11.0)
    assert waiting.slot_at == 11.0


def test_the_counter_shows_prompts_of_others_in_their_turn() -> None:
    server = Server()
    server.page(0, 10.0)
    endpoint = server.model.endpoint("a")
    early, _ = server.send(10.0), endpoint.share("r", part(prompt(1)), 10.1)
    late = server.send(10.2)
    assert server.page(1, 10.5) == [(early, 10.25)]
    assert server.page(2, 11.0) == []
    assert endpoint.others.idle_at == 10.75
    assert endpoint.others.pending == 0
    [(shown, at)] = server.page(3, 11.5)
    assert shown is late
    assert at == 11.25


def test_a_first_token_that_another_tells_of_is_expected_on_the_next_page() -> None:
    server = Server()
    server.page(0, 10.0)
    endpoint = server.model.endpoint("a")
    endpoint.share("r", part(prompt(1)), 10.1)
    mine = server.send(10.2)
    _, begun = endpoint.share("r", part(decoding=1), 10.3)
    assert begun == 1
    server.counted.reported()
    assert server.page(1, 10.5) == []
    assert [request for request, _ in server.page(2, 11.0)] == [mine]


def test_a_service_begins_when_the_prompt_of_another_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = FleetModel()
    mine = model.sent("a", 1000.0, 10.0)
    model.endpoint("a").share("r", part(prompt(7), idle_seconds=0.5), 12.5)
    learned: list[float] = []
    monkeypatch.setattr(ServiceModel, "learn", lambda *sample: learned.append(sample[-1]))
    model.first_token(mine, 12.2)
    serial, in_slots = learned
    assert serial == pytest.approx(0.2)
    assert in_slots > serial


def test_a_number_that_is_reported_twice_is_one_prompt() -> None:
    others = OthersWork()
    assert others.take("r", part(prompt(1), prompt(1)), 10.0) == (1, 0)
    assert others.pending == 1
    assert others.take("r", None, 10.1) == (0, 1)
    assert others.requests == 0


def test_prompts_that_are_only_counted_are_a_finite_wait() -> None:
    model = FleetModel()
    one = model.table(("a",), 1000.0, 10.0).services[0]
    endpoint = model.endpoint("a")
    endpoint.share("r", Part(0, -1.0, 3, 3.0, [prompt(1)]), 10.0)
    assert model.wait("a", 10.0) == pytest.approx(4 * one)
    (first,) = endpoint.others.waiting
    endpoint.counted(first, 10.5)  # the report that names the next ones is late
    assert model.wait("a", 10.5) == pytest.approx(3 * one)
    assert model.wait("a", 10.5 + one) == pytest.approx(2 * one)
