"""Shadow profiles: their picks, their budget, and that they have no effect."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    GuardRails,
    LLMRequest,
    NullObserver,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    Scorer,
    ShadowPick,
    ShadowProfile,
    StateKey,
    WeightedScorer,
)
from epp.testing import make_endpoint, make_request
from epp_plugins.pickers import max_score, random_picker
from scheduling.stubs import (
    FilterStub,
    HandlerStub,
    PickerStub,
    ScorerStub,
    Watcher,
    fixed,
    pods,
    raising,
    without,
)

NOTE = StateKey[str]("note")


def profile(
    name: str,
    *scorers: Scorer,
    filters: Sequence[Filter] = (),
    guards: GuardRails | None = None,
    picker: Any = None,
) -> SchedulerProfile:
    return SchedulerProfile(
        name=name,
        filters=filters,
        scorers=[WeightedScorer(scorer) for scorer in scorers],
        picker=picker or PickerStub(),
        guards=guards or GuardRails(observer=NullObserver()),
    )


def shadowed(
    of: SchedulerProfile,
    *,
    sample: float = 1.0,
    seed: int = 0,
    timer: Callable[[], float] = lambda: 0.0,
) -> ShadowProfile:
    return ShadowProfile(
        of, sample=sample, budget_seconds=1.0, rng=random.Random(seed), timer=timer
    )


def decided(endpoints: Sequence[Endpoint]) -> SchedulingResult:
    """Choose the first endpoint."""
    real = profile("real", fixed(1.0, *[0.0] * (len(endpoints) - 1)))
    return Scheduler(HandlerStub(["real"]), {"real": real}).schedule(make_request(), endpoints)


def run(shadow: ShadowProfile, names: str = "abc") -> ShadowPick | None:
    endpoints = pods(*names)
    return shadow.run(make_request(), endpoints, CycleState(), decided(endpoints))


@pytest.mark.parametrize(
    ("shadow", "want"),
    [
        pytest.param(
            profile("shadow", fixed(0.75, 0.5, 0.25)),
            ShadowPick("shadow", "a", 0.75, 0.0, agrees=True),
            id="agrees",
        ),
        pytest.param(
            profile("shadow", fixed(0.25, 1.0, 0.5)),
            ShadowPick("shadow", "b", 1.0, 0.75, agrees=False),
            id="disagrees by the difference to the real choice",
        ),
        pytest.param(
            profile("shadow", fixed(1.0, 1.0, 1.0), picker=PickerStub(lambda s: [s[2]])),
            ShadowPick("shadow", "c", 1.0, 0.0, agrees=False),
            id="disagrees among equals",
        ),
        pytest.param(
            profile("shadow", ScorerStub("bad", raising), fixed(0.5, 1.0, 0.0)),
            ShadowPick("shadow", "b", 1.0, 0.5, agrees=False),
            id="one of its scorers fails",
        ),
        pytest.param(
            profile("shadow", fixed(0.5, 1.0, 0.0), picker=PickerStub(raising)),
            ShadowPick("shadow", "b", 1.0, 0.5, agrees=False),
            id="its picker fails",
        ),
    ],
)
def test_what_a_shadow_would_have_done(shadow: SchedulerProfile, want: ShadowPick) -> None:
    assert run(shadowed(shadow)) == want


def test_the_margin_is_nan_where_the_real_choice_was_filtered_out() -> None:
    pick = run(shadowed(profile("shadow", fixed(0.25, 0.5), filters=[without("a")])))
    assert pick is not None
    assert (pick.endpoint, pick.score, pick.agrees) == ("c", 0.5, False)
    assert math.isnan(pick.margin)


def test_a_shadow_that_finds_nobody_says_so() -> None:
    pick = run(shadowed(profile("shadow", filters=[FilterStub("none", lambda _: [])])))
    assert pick is not None
    assert (pick.endpoint, pick.score, pick.agrees) == ("", 0.0, False)
    assert math.isnan(pick.margin)


@pytest.mark.parametrize(
    ("sample", "least", "most"),
    [(0.0, 0, 0), (1.0, 1000, 1000), (0.25, 200, 300)],
    ids=["none", "all", "a quarter"],
)
def test_it_sees_its_sample_of_the_requests(sample: float, least: int, most: int) -> None:
    shadow = shadowed(profile("shadow"), sample=sample)
    seen = sum(run(shadow, "a") is not None for _ in range(1000))
    assert least <= seen <= most


@pytest.mark.parametrize(
    ("cost", "want"),
    [
        pytest.param(0.5, "xxxxxxxx", id="within the budget"),
        pytest.param(1.0, "xxxxxxxx", id="just the budget"),
        pytest.param(1.5, "x-x-x-x-", id="half more: one is left out"),
        pytest.param(3.0, "x--x--x-", id="three times as much: one in three"),
        pytest.param(3.5, "x---x---", id="and a half: one in four"),
    ],
)
def test_a_run_over_its_budget_is_paid_for_by_those_that_follow(cost: float, want: str) -> None:
    times = (seconds for n in range(100) for seconds in (10.0 * n, 10.0 * n + cost))
    shadow = shadowed(profile("shadow"), timer=lambda: next(times))
    assert "".join("-" if run(shadow) is None else "x" for _ in range(8)) == want


class Writing(FilterStub):
    """Records in the state that it has run."""

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        before = state.read(NOTE)
        state.write(NOTE, f"{before}, seen by the shadow")
        return list(endpoints)


def test_what_a_shadow_writes_stays_in_a_copy_of_the_state() -> None:
    state = CycleState()
    state.write(NOTE, "real")
    endpoints = pods("a", "b")
    shadow = shadowed(profile("shadow", filters=[Writing("writing", list)]))
    assert shadow.run(make_request(), endpoints, state, decided(endpoints)) is not None
    assert state.read(NOTE) == "real"


def test_a_shadow_reserves_nothing_and_writes_to_no_endpoint() -> None:
    endpoints = [make_endpoint(name, waiting_requests=2) for name in "ab"]
    before = [(e.load.in_flight, e.load.waiting_requests, dict(e.attributes)) for e in endpoints]
    shadow = shadowed(profile("shadow", fixed(0.0, 1.0)))
    assert shadow.run(make_request(), endpoints, CycleState(), decided(endpoints)) is not None
    after = [(e.load.in_flight, e.load.waiting_requests, dict(e.attributes)) for e in endpoints]
    assert after == before


def test_what_fails_in_a_shadow_stays_on_where_it_decides() -> None:
    watcher = Watcher()
    guards = GuardRails(observer=watcher, disable_after=2)
    flaky = ScorerStub("flaky", raising)
    real = profile("real", flaky, guards=guards)
    shadow = shadowed(profile("shadow", flaky, guards=guards.apart()))
    endpoints = pods("a")
    result = decided(endpoints)
    for _ in range(5):
        shadow.run(make_request(), endpoints, CycleState(), result)
    assert flaky.calls == 2
    flaky.answer = lambda e: [0.5] * len(e)
    assert real.run(make_request(), endpoints, CycleState()).endpoints[0].score == 0.5


@given(
    seed=st.integers(0, 10_000),
    shadow_seed=st.integers(0, 10_000),
    sample=st.floats(0, 1),
    rows=st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), max_size=12),
)
def test_decisions_with_and_without_a_shadow_are_the_same(
    seed: int, shadow_seed: int, sample: float, rows: list[list[float]]
) -> None:
    def decisions(*, with_shadow: bool) -> list[str]:
        guards = GuardRails(observer=NullObserver(), disable_after=2)
        shared = ScorerStub("shared", raising)
        picker = max_score.MaxScorePicker("max", max_score.Params(), rng=random.Random(seed))
        real = profile("real", shared, picker=picker, guards=guards)
        scheduler = Scheduler(HandlerStub(["real"]), {"real": real}, guards=guards)
        other = random_picker.RandomPicker(
            "random", random_picker.Params(), rng=random.Random(shadow_seed)
        )
        shadow = shadowed(
            profile("shadow", shared, picker=other, guards=guards.apart()),
            sample=sample,
            seed=shadow_seed,
        )
        endpoints, chosen = pods("a", "b", "c", "d"), []
        for row in rows:
            scores = row if row[0] else None  # fails now and then
            shared.answer = lambda _, scores=scores: scores  # type: ignore[misc] # binds it now
            state = CycleState()
            result = scheduler.schedule(make_request(), endpoints, state)
            if with_shadow:
                shadow.run(make_request(), endpoints, state, result)
            chosen.append(result.endpoints[0].endpoint.name)
        return chosen

    assert decisions(with_shadow=True) == decisions(with_shadow=False)
