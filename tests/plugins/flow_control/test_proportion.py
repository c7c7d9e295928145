"""Tokens in proportion: the next flow, flows that wait, and long-run shares of tenants."""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.flow_control.pool import ANYWHERE, ENDPOINT, Pool, Size

from epp.flow_control.flows import Band
from epp.flow_control.plugins import Flow
from epp.parsing.plugins import Usage
from epp.request_control.plugins import RESPONSE_USAGE, EndCause
from epp.scheduling import CycleState, LLMRequest
from epp.testing import check, make_request
from epp_plugins.flow_control.proportion import Params, ProportionFairnessPolicy
from epp_plugins.flow_control.tenant_queues import Named, Settings, TenantQueues
from epp_plugins.state_keys import TOKENIZED_PROMPT, TokenizedPrompt

WEIGHTS = {"a": 1, "b": 2, "c": 4}
SIZES = {"a": Size(2000, 50, 4096), "b": Size(100, 120), "c": Size(500, 100, 200)}


def params(**said: Any) -> Params:
    return msgspec.convert(said, Params)


def weighted(weights: Mapping[str, float], **said: Any) -> list[dict[str, Any]]:
    return [{"name": name, "overQuotaWeight": weight, **said} for name, weight in weights.items()]


class Desk:
    """The policy with hands: requests go and end as a test says."""

    def __init__(self, **said: Any) -> None:
        self.now = 0.0
        self.policy = ProportionFairnessPolicy("p", params(**said), lambda: self.now)
        self.band = Band(0, max_requests=9, max_bytes=9, created=0.0)

    def request(self, fairness_id: str, prompt_tokens: int = 10, most: int = 10) -> LLMRequest:
        request = make_request(prompt=b"x" * 4 * prompt_tokens, max_output_tokens=most)
        request.fairness_id = fairness_id
        return request

    def send(
        self, fairness_id: str, prompt_tokens: int = 10, most: int = 10, counted: int | None = None
    ) -> tuple[LLMRequest, CycleState]:
        request, state = self.request(fairness_id, prompt_tokens, most), CycleState()
        if counted is not None:
            state.write(TOKENIZED_PROMPT, TokenizedPrompt(b"", counted))
        self.policy.pre_request(request, ANYWHERE, state)
        return request, state

    def end(
        self,
        sent: tuple[LLMRequest, CycleState],
        usage: Usage | None = None,
        cause: EndCause = EndCause.ENDED,
    ) -> None:
        request, state = sent
        if usage is not None:
            state.write(RESPONSE_USAGE, usage)
        self.policy.response_complete(request, ENDPOINT, cause, state)

    def wait(self, *fairness_ids: str) -> list[Flow]:
        flows = [Flow(each, self.band, self.now) for each in fairness_ids]
        for flow in flows:
            flow.waiting = 1
            flow.size_bytes = 40
            self.policy.activated(flow, self.now)
        return flows

    def order(self, flows: Sequence[Flow]) -> list[str]:
        keys = self.policy.keys(flows, self.now)
        ranked = sorted(zip(keys, flows, strict=True), key=lambda pair: pair[0])
        return [flow.fairness_id for _, flow in ranked]

    def used(self, fairness_id: str) -> float:
        queue = self.policy._queues.peek(fairness_id)
        return queue.used_at(self.now, self.policy._half_life)


@pytest.mark.parametrize(
    ("fairness_id", "want"),
    [
        pytest.param("alone", 1.5, id="its own weight"),
        pytest.param("chat", 4 * 2 / (2 + 1 + 0.5), id="its part of that of its parent"),
        pytest.param("search", 4 * 1 / (2 + 1 + 0.5), id="the same of its sibling"),
        pytest.param("unlisted", 4 * 0.5 / (2 + 1 + 0.5), id="one of the default queue"),
    ],
)
def test_places_among_those_that_wait_go_by_weight(fairness_id: str, want: float) -> None:
    desk = Desk(
        queues=[
            {"name": "alone", "overQuotaWeight": 1.5},
            {"name": "product", "overQuotaWeight": 4},
            {"name": "chat", "parent": "product", "overQuotaWeight": 2},
            {"name": "search", "parent": "product"},
        ],
        defaultQueue={"parent": "product", "overQuotaWeight": 0.5},
    )
    assert desk.policy.weight(fairness_id) == pytest.approx(want)


def test_the_class_is_sound() -> None:
    check(ProportionFairnessPolicy)


# --- in the long run ------------------------------------------------------------------------------


def saturate(pool: Pool, sizes: Mapping[str, Size], until: float) -> None:
    """Have more come than can go, of every tenant and of sizes half to one and a half."""
    rng = Random(7)
    for name, size in sizes.items():
        for number in range(int(until * 20)):
            factor = rng.uniform(0.5, 1.5)
            each = Size(int(size.prompt * factor), int(size.response * factor), size.max_tokens)
            pool.arrive(number * 0.05 * rng.random(), name, each)


def got_by(pool: Pool, until: float) -> dict[str, int]:
    """Return the tokens that tenants got by then, those of responses under way among them."""
    pool.run(until)
    return {name: pool.tenants[name].tokens for name in sorted(pool.tenants)}


@pytest.mark.parametrize(
    ("half_life", "warm_up"),
    [
        pytest.param(300, 0, id="from the first request on"),
        pytest.param(20, 10, id="with a short memory, once the beginning is forgotten"),
    ],
)
@pytest.mark.parametrize("slots", [32, 64])  # with 8, the first's requests are 15 % of its part
def test_saturated_tenants_get_tokens_by_their_weights(
    slots: int, half_life: float, warm_up: float
) -> None:
    pool = Pool(params(queues=weighted(WEIGHTS), halfLifeSeconds=half_life), slots=slots)
    saturate(pool, SIZES, warm_up + 60)
    before = got_by(pool, warm_up) if warm_up else dict.fromkeys(WEIGHTS, 0)
    got = {name: tokens - before[name] for name, tokens in got_by(pool, warm_up + 60).items()}
    for name, weight in WEIGHTS.items():
        assert got[name] / sum(got.values()) == pytest.approx(weight / 7, rel=0.05)


def modest_waits(flood_per_second: int) -> float:
    """Return the p90 wait of a tenant that wants less than its part, beside a hog and a flood."""
    pool = Pool(params(), slots=16)
    rng = Random(11)
    at = 0.0
    while at < 60:
        at += rng.expovariate(3)
        pool.arrive(at, "modest", Size(100, 50))
    for number in range(1200):
        pool.arrive(number * 0.05, "hog", Size(400, 100))
    for number in range(flood_per_second * 50):
        pool.arrive(10 + number / flood_per_second, "flood", Size(800, 200))
    pool.run(60)
    waits = sorted(pool.tenants["modest"].waits)
    assert len(waits) > 150
    return waits[len(waits) * 9 // 10]


def test_a_flooding_tenant_does_not_make_another_wait() -> None:
    without = modest_waits(0)
    assert without > 0  # the hog alone fills the pool
    assert modest_waits(50) == pytest.approx(without, rel=0.1)


def test_a_tenant_that_comes_late_does_not_take_the_pool_from_those_that_used_it() -> None:
    pool = Pool(params(), slots=8)
    for number in range(2400):
        pool.arrive(number * 0.025, "old", Size(100, 50))
    pool.run(30)
    for number in range(600):
        pool.arrive(30 + number * 0.01, "new", Size(100, 50))
    pool.run(36)
    began = pool.tenants["old"].answered
    news = pool.tenants["new"].answered
    pool.run(42)
    old = pool.tenants["old"].answered - began
    assert old == pytest.approx(pool.tenants["new"].answered - news, rel=0.1)
    # While it had nothing waiting it saved up nothing: it catches up on what is in flight alone.
    assert news <= 6 * 8 / Size(100, 50).seconds / 2 + 8


def test_organisations_share_first_then_their_tenants() -> None:
    queues = [
        {"name": "small-org"},
        {"name": "large-org", "overQuotaWeight": 3},
        {"name": "only", "parent": "small-org"},
        {"name": "one", "parent": "large-org"},
        {"name": "two", "parent": "large-org", "overQuotaWeight": 2},
    ]
    pool = Pool(params(queues=queues), slots=16)
    saturate(pool, dict.fromkeys(("only", "one", "two"), SIZES["c"]), 60)
    got = got_by(pool, 60)
    total = sum(got.values())
    parts = {name: tokens / total for name, tokens in got.items()}
    assert parts == pytest.approx({"only": 1 / 4, "one": 1 / 4, "two": 2 / 4}, rel=0.05)


def test_with_a_capacity_nobody_has_more_than_its_share_while_others_lack_theirs() -> None:
    said = params(queues=weighted(WEIGHTS), capacity={"requests": 28}, kValue=0)
    pool = Pool(said, slots=28, refreshed_every=0)
    saturate(pool, dict.fromkeys(WEIGHTS, SIZES["b"]), 40)
    pool.run(20)
    held = {name: pool.policy._queues.peek(name).allocated[0] for name in WEIGHTS}
    assert held == {"a": 4, "b": 8, "c": 16}


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "want"),
    [
        pytest.param({"limit": {"requests": 3}}, "", id="below the limit"),
        pytest.param(
            {"limit": {"requests": 2}},
            "queue a has 2 of at most 2 requests in flight",
            id="at the limit of requests",
        ),
        pytest.param({"limit": {"tokens": 60}}, "", id="up to the limit of tokens"),
        pytest.param(
            {"limit": {"tokens": 59}},
            "queue a has 40 of at most 59 tokens in flight, the request takes 20",
            id="above the limit of tokens",
        ),
    ],
)
@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "by default"])
def test_a_request_that_would_exceed_a_limit_waits(
    queue: dict[str, Any], want: str, *, is_listed: bool
) -> None:
    desk = Desk(**({"queues": [{"name": "a", **queue}]} if is_listed else {"defaultQueue": queue}))
    assert desk.policy.refusal(desk.request("a"), 0.0) == ""
    sent = [desk.send("a") for _ in range(2)]
    assert desk.policy.refusal(desk.request("a"), 0.0) == want
    for each in sent:
        desk.end(each)
    assert desk.policy.refusal(desk.request("a"), 0.0) == ""


def test_the_limit_of_a_queue_above_counts_all_below() -> None:
    org = {"name": "org", "limit": {"requests": 2}}
    desk = Desk(queues=[org, {"name": "a", "parent": "org"}], defaultQueue={"parent": "org"})
    desk.send("a")
    desk.send("somebody")
    assert desk.policy.refusal(desk.request("else"), 0.0) == (
        "queue org has 2 of at most 2 requests in flight"
    )


def test_an_unknown_tenant_is_refused_under_its_own_name_and_without_limits_nobody_is() -> None:
    desk = Desk(defaultQueue={"limit": {"tokens": 5}})
    assert desk.policy.refusal(desk.request("x"), 0.0).startswith("queue x has 0 of at most 5")
    assert Desk().policy.refusal(desk.request("x", 10**6), 0.0) == ""


def test_limits_are_never_exceeded_under_load() -> None:
    queues = weighted(WEIGHTS, limit={"requests": 3})
    pool = Pool(params(queues=queues), slots=16)
    saturate(pool, SIZES, 10)
    pool.run(10)
    assert pool.most_in_flight == {"a": 3, "b": 3, "c": 3}


# --- order ----------------------------------------------------------------------------------------


def test_those_that_lack_what_they_deserve_go_first_then_by_priority_then_by_use() -> None:
    desk = Desk(
        queues=[
            {"name": "plain"},
            {"name": "used"},
            {"name": "high", "priority": 1},
            {"name": "owed", "deserved": {"requests": 2}, "priority": -1},
        ]
    )
    flows = desk.wait("plain", "used", "high", "owed")
    for name in ("used", "high", "owed"):
        desk.send(name)
    assert desk.order(flows) == ["owed", "high", "plain", "used"]
    desk.send("owed")  # now it has its two
    assert desk.order(flows) == ["high", "plain", "used", "owed"]


def test_tokens_deserved_count_as_requests_do() -> None:
    desk = Desk(queues=[{"name": "a"}, {"name": "b", "deserved": {"tokens": 50}}])
    flows = desk.wait("a", "b")
    for _ in range(2):
        desk.send("b")
    assert desk.order(flows) == ["b", "a"]  # 40 of 50
    desk.send("b")
    assert desk.order(flows) == ["a", "b"]


def test_of_those_that_got_as_much_the_one_with_less_in_flight_goes_first() -> None:
    desk = Desk(queues=[{"name": "a"}, {"name": "b"}])
    flows = desk.wait("a", "b")
    desk.send("a")
    desk.end(desk.send("b"))
    assert desk.used("a") == desk.used("b")
    assert desk.order(flows) == ["b", "a"]


@pytest.mark.parametrize(
    ("usage", "cause", "want"),
    [
        pytest.param(Usage(7, 3), EndCause.ENDED, 10.0, id="what the response says"),
        pytest.param(None, EndCause.ENDED, 20.0, id="the estimate if it says nothing"),
        pytest.param(None, EndCause.CLIENT_DISCONNECT, 20.0, id="likewise if the client leaves"),
        pytest.param(None, EndCause.REFUSED, 0.0, id="nothing if there was no response"),
        pytest.param(None, EndCause.EVICTED, 0.0, id="nor if it had to make room"),
    ],
)
def test_what_a_tenant_got_is_trued_up(usage: Usage | None, cause: EndCause, want: float) -> None:
    desk = Desk()
    sent = desk.send("a")
    assert desk.used("a") == 20.0
    desk.now = 300.0  # one half-life
    desk.end(sent, usage, cause)
    assert desk.used("a") == pytest.approx(want / 2)
    assert desk.policy._pool.allocated == [0.0, 0.0]


def test_a_request_ends_once() -> None:
    desk = Desk()
    sent = desk.send("a")
    desk.end(sent)
    desk.end(sent)
    desk.end((desk.request("b"), CycleState()))  # one that was sent before a reload
    assert desk.policy._pool.allocated == [0.0, 0.0]


def test_estimates_learn_from_responses_and_those_of_others_stand_in_at_first() -> None:
    desk = Desk()
    desk.end(desk.send("a", 10, 90), Usage(10, 15))  # 25 of the 100 that it was estimated to
    before = desk.used("a")
    desk.send("a", 10, 90)
    assert desk.used("a") - before == pytest.approx(25.0)
    desk.send("new", 10, 90)
    assert desk.used("new") == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("most", "counted", "want"),
    [
        pytest.param(10, None, 20.0, id="a quarter of the bytes and max_tokens"),
        pytest.param(10, 300, 310.0, id="what a producer counted"),
        pytest.param(-1, None, 25.0, id="the output ratio"),
    ],
)
def test_estimates(most: int, counted: int | None, want: float) -> None:
    desk = Desk()
    desk.send("a", 10, most, counted)
    assert desk.used("a") == want


def test_keys_taken_at_different_times_compare() -> None:
    desk = Desk()
    first, second = desk.wait("first", "second")
    desk.send("first", 100)
    (early,) = desk.policy.keys([first], 0.0)
    desk.now = 600.0  # two half-lives later 110 are worth 27.5
    desk.send("second", 20)
    (late,) = desk.policy.keys([second], desk.now)
    assert early < late
    assert [desk.used("first"), desk.used("second")] == pytest.approx([27.5, 30.0])


def test_time_alone_changes_no_key() -> None:
    desk = Desk()
    flows = desk.wait("a", "b")
    desk.send("a")
    before = desk.policy.keys(flows, 0.0)
    assert desk.policy.keys(flows, 1e6) == before


@pytest.mark.parametrize(
    ("k", "waits_already", "want"),
    [
        # The heavy one got 1000 and has 20 in flight, the light one 100 and 20, by weight 2.
        pytest.param(1, (), 1000 * 3, id="nobody waits: as the most of those in flight"),
        pytest.param(0, (), 1020 * 3, id="k = 0: what is in flight too"),
        pytest.param(10, (), 820 * 3, id="k = 10: ten times that less"),
        # The light one counts as having got 2000 by then, 20 of it in flight.
        pytest.param(1, ("heavy", "light"), 990 * 3, id="as the least of those that wait"),
        pytest.param(1, ("heavy",), 1000 * 3, id="of those that wait, not of those in flight"),
    ],
)
def test_a_tenant_in_which_nothing_waited_saves_up_nothing(
    k: float, waits_already: Sequence[str], want: float
) -> None:
    desk = Desk(queues=weighted({"heavy": 1, "light": 2, "new": 3}), kValue=k, halfLifeSeconds=1e9)
    for name, tokens in (("heavy", 1000), ("light", 100)):
        desk.end(desk.send(name, tokens - 10), Usage(tokens - 10, 10))
        desk.send(name)
    flows = desk.wait(*waits_already)
    flows += desk.wait("new")
    assert desk.used("new") == pytest.approx(want)


def test_a_tenant_that_still_has_something_waiting_keeps_its_place() -> None:
    desk = Desk()
    desk.end(desk.send("old"), Usage(990, 10))
    desk.wait("new", "old")
    assert desk.used("new") == 0.0
    desk.wait("new")  # in another band
    assert desk.used("new") == 0.0


def test_an_organisation_in_which_nothing_waited_saves_up_nothing_either() -> None:
    desk = Desk(
        queues=[
            {"name": "old-org"}, {"name": "new-org", "overQuotaWeight": 2},
            {"name": "old", "parent": "old-org"}, {"name": "new", "parent": "new-org"},
        ]
    )  # fmt: skip
    desk.end(desk.send("old"), Usage(990, 10))
    desk.wait("old", "new")
    new_org = desk.policy._queues.inner[1]
    assert new_org.used == pytest.approx(2000.0)
    assert desk.used("new") == 0.0  # it has no siblings


def test_an_operator_sees_what_a_tenant_has_and_may_have() -> None:
    queues = [{"name": "a", "deserved": {"requests": 1}}, {"name": "b"}]
    desk = Desk(queues=queues, capacity={"requests": 4}, kValue=0)
    flow, other = desk.wait("a", "b")
    for each in (flow, other):
        each.waiting = 9
    desk.end(desk.send("a"))
    desk.send("a")
    desk.now = 1.0
    desk.order([flow])
    shares = desk.policy.shares(flow, 1.0)
    assert [*shares["requests in flight"]] == pytest.approx([1, 1, 2.5])  # 1 and half of 3
    assert shares["tokens in flight"][:2] == (20, None)
    assert shares["tokens of late"].used == pytest.approx(40, rel=0.01)
    assert Desk().policy.shares(other, 0.0)["requests in flight"] == (0, None, None)


# --- memory ---------------------------------------------------------------------------------------


def test_unlimited_tenants_take_bounded_memory() -> None:
    queues = TenantQueues((Named(name="listed"),), Settings(), half_life=1.0, limit=100)
    for number in range(1000):
        queues.queue_of(f"t{number}", 0.0)
    assert len(queues) == 100
    assert queues.queue_of("listed", 0.0) is queues.peek("listed")
    assert len(queues) == 100


def test_a_tenant_with_something_in_flight_is_not_forgotten() -> None:
    queues = TenantQueues((), Settings(), half_life=1.0, limit=10)
    busy = queues.queue_of("busy", 0.0)
    busy.begin(1.0, 1.0, 0.0, 1.0)
    for number in range(100):
        queues.queue_of(f"t{number}", 0.0)
    assert queues.peek("busy") is busy


def test_tenants_that_used_nothing_to_speak_of_are_forgotten_as_others_end() -> None:
    desk = Desk(halfLifeSeconds=1)
    for number in range(50):
        desk.end(desk.send(f"t{number}"))
    desk.now = 60.0
    for _ in range(20):
        desk.end(desk.send("last"))
    assert len(desk.policy._queues) == 1
    assert desk.policy._in_flight == {}


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param(
            {"queues": [{"name": "a"}, {"name": "a"}]},
            "`queues`: there are two named `a`; rename one",
            id="two of one name",
        ),
        pytest.param(
            {"queues": [{"name": "a", "parent": "org"}, {"name": "org"}]},
            "queue `a`: no parent `org` is listed before it in `queues`; listed: none",
            id="a parent listed later",
        ),
        pytest.param(
            {"queues": [{"name": "a"}], "defaultQueue": {"parent": "b"}},
            "`defaultQueue`: no parent `b` is listed before it in `queues`; listed: a",
            id="a default parent that is not there",
        ),
        pytest.param(
            {"defaultQueue": {"deserved": {"tokens": 9}, "limit": {"tokens": 5}}},
            "`deserved` is 9, more than its `limit` of 5: raise `limit` or lower `deserved`",
            id="more deserved than allowed",
        ),
        pytest.param({"defaultQueue": {"overQuotaWeight": 0}}, "> 0.0", id="no weight"),
        pytest.param({"halfLifeSeconds": 0}, ">= 0.001", id="no half-life"),
        pytest.param({"queue": []}, "unknown field `queue`", id="a misspelt parameter"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        params(**said)
    assert why in str(caught.value)


# --- any program ----------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "end", "wait", "leave", "keys", "later"]),
        st.sampled_from(["a", "b", "c", "x", "org"]),
        st.integers(0, 100),
    ),
    max_size=60,
)


@given(steps=STEPS, has_capacity=st.booleans())
def test_accounts_add_up_whatever_happens(
    steps: list[tuple[str, str, int]], *, has_capacity: bool
) -> None:
    queues = [{"name": "org", "limit": {"requests": 4}}, *weighted(WEIGHTS, parent="org")]
    capacity = {"requests": 5, "tokens": 300} if has_capacity else {}
    desk = Desk(queues=queues, capacity=capacity, halfLifeSeconds=5)
    sent: list[tuple[LLMRequest, CycleState]] = []
    waiting: list[Flow] = []
    for step, name, number in steps:
        if step == "send" and not desk.policy.refusal(desk.request(name, number), desk.now):
            sent.append(desk.send(name, number))
        elif step == "end" and sent:
            usage = Usage(number, number) if number % 2 else None
            desk.end(sent.pop(number % len(sent)), usage)
        elif step == "wait":
            waiting += desk.wait(name)
        elif step == "leave" and waiting:
            waiting.pop(number % len(waiting)).waiting = 0
        elif step == "later":
            desk.now += number / 10
        elif step == "keys":
            keys = desk.policy.keys(waiting, desk.now)
            assert sorted(keys) == sorted(keys, reverse=True)[::-1]  # all of them compare
        pool = desk.policy._pool
        assert pool.allocated[0] == len(sent)
        assert pool.allocated[1] == sum(len(request.prompt) / 4 + 10 for request, _ in sent)
        org = desk.policy._queues.inner[0]
        below = [desk.policy._queues.peek(each) for each in WEIGHTS]
        for resource in range(2):
            assert org.allocated[resource] == sum(each.allocated[resource] for each in below)
        assert org.allocated[0] <= 4
        assert all(0 <= each.used < inf for each in (pool, org, *below))


def test_the_state_has_the_queues_and_what_they_got() -> None:
    desk = Desk(queues=[{"name": "team"}, {"name": "a", "parent": "team"}])
    desk.send("a", prompt_tokens=10, most=10)
    desk.send("stranger", prompt_tokens=4, most=4)
    desk.wait("a", "b")
    state = desk.policy.dump_state()
    assert (state["flows_waiting"], state["queues_in_flight"]) == (2, 2)
    assert state["requests_in_flight"] == 2
    queues = state["queues"]
    assert isinstance(queues, dict)
    assert [*queues] == ["team", "a", "stranger"]
    assert queues["team"] == queues["a"]
    assert queues["a"]["requests_in_flight"] == 1


def test_the_state_of_many_queues_is_bounded() -> None:
    desk = Desk()
    for number in range(500):
        desk.send(f"flow-{number}")
    state = desk.policy.dump_state()
    queues = state["queues"]
    assert isinstance(queues, dict)
    assert (state["queues_in_flight"], len(queues)) == (500, 50)


# --- replicas -------------------------------------------------------------------------------------


def exchange(one: Desk, other: Desk) -> None:
    """Let two replicas tell each other what their tenants use."""
    for name, sender, receiver in (("one", one, other), ("other", other, one)):
        receiver.policy.receive(name, sender.policy.contribution())


def test_limits_hold_for_all_replicas_together() -> None:
    org = {"name": "org", "limit": {"requests": 3}}
    said: dict[str, Any] = {"queues": [org, {"name": "a", "parent": "org"}]}
    one, other = Desk(**said), Desk(**said)
    sent = [one.send("a"), one.send("a")]
    other.send("a")
    exchange(one, other)
    for desk in (one, other):
        assert desk.policy.refusal(desk.request("a"), 0.0) == (
            "queue org has 3 of at most 3 requests in flight"
        )
    one.end(sent[0])
    exchange(one, other)
    assert other.policy.refusal(other.request("a"), 0.0) == ""
    other.send("a")
    assert other.policy.refusal(other.request("a"), 0.0) != ""
    other.policy.replica_left("one")
    assert other.policy.refusal(other.request("a"), 0.0) == ""


def test_tokens_received_at_another_replica_put_a_tenant_behind() -> None:
    one, other = Desk(), Desk()
    one.end(one.send("a", 500, 500))
    other.send("b", 10, 10)
    flows = [Flow(name, other.band, created=0.0) for name in ("a", "b")]
    assert other.policy.keys(flows, 0.0)[0] < other.policy.keys(flows, 0.0)[1]
    exchange(one, other)
    assert other.policy.keys(flows, 0.0)[0] > other.policy.keys(flows, 0.0)[1]
    one.now = other.now = 1.0
    other.policy.replica_left("one")
    assert other.policy.keys(flows, 1.0)[0] > other.policy.keys(flows, 1.0)[1]


def test_queues_of_tenants_that_are_active_elsewhere_only_are_forgotten_in_time() -> None:
    one, other = Desk(halfLifeSeconds=1), Desk(halfLifeSeconds=1)
    sent = [one.send(f"t{number}") for number in range(20)]
    exchange(one, other)
    assert other.policy.dump_state()["queues_in_flight"] == 20
    for each in sent:
        one.end(each)
    exchange(one, other)
    state = other.policy.dump_state()
    assert (state["queues_in_flight"], state["requests_in_flight"]) == (0, 0)
    assert state["tokens_in_flight"] == 0
    one.now = other.now = 100.0
    for _ in range(6):
        other.end(other.send("somebody"))
    assert other.policy.dump_state()["queues_of_unlisted_flows"] == 1


def test_a_replica_can_be_left_out() -> None:
    assert not Desk(syncCrossReplicaState=False).policy.contributes
    assert Desk().policy.contributes
