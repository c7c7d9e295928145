"""Property: schedule() with any graph of correct and faulty plugins.

A graph is drawn as data. What its filters keep and what its scorers add up to is worked out from
the data by the rules alone, and compared with what the framework does; then the whole sequence of
requests is run again, and has to come out the same.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.scheduling import (
    DroppedError,
    Endpoint,
    Filter,
    FilterRun,
    GuardRails,
    NoEndpointsError,
    NullObserver,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingError,
    SchedulingResult,
    ScoredEndpoint,
    WeightedScorer,
)
from epp.testing import make_request
from epp_plugins.pickers import max_score, random_picker
from scheduling.stubs import (
    FilterStub,
    HandlerStub,
    HookStub,
    PickerStub,
    ScorerStub,
    TreeStub,
    pods,
    raising,
)

POOL = tuple(pods(*"abcde"))
NAMES = "abcde"
STRANGER = pods("stranger")[0]
NAN = float("nan")

BAD_FILTERS: dict[str, Callable[[Sequence[Endpoint]], Any]] = {
    "raises": raising,
    "none": lambda _: None,
    "generator": lambda given: (e for e in given),
    "foreign": lambda given: [*given, STRANGER],
    "twice": lambda given: [*given, *given],
    "words": lambda given: [e.name for e in given],
}
BAD_SCORERS: dict[str, Callable[[Sequence[Endpoint]], Any]] = {
    "raises": raising,
    "none": lambda _: None,
    "short": lambda given: [1.0] * (len(given) - 1),
    "long": lambda given: [1.0] * (len(given) + 1),
    "words": lambda given: ["1.0"] * len(given),
    "hollow": lambda given: [None] * len(given),
    "dict": lambda given: dict.fromkeys(given, 1.0),
}
BAD_PICKERS: dict[str, Callable[[Sequence[ScoredEndpoint]], Any]] = {
    "raises": raising,
    "none": lambda _: None,
    "empty": lambda _: [],
    "foreign": lambda _: [ScoredEndpoint(STRANGER, 1.0)],
    "twice": lambda scored: [scored[0], scored[0]],
    "bare": lambda scored: [scored[0].endpoint],
    "generator": iter,
}
BAD_HANDLERS: dict[str, dict[str, Callable[..., Any]]] = {
    "cannot pick": {"pick": raising},
    "picks no mapping": {"pick": lambda *_: ["0"]},
    "picks a stranger": {"pick": lambda profiles, _: {"stranger": profiles["0"]}},
    "picks again": {"pick": lambda profiles, _: {"0": profiles["0"]}},
    "picks none": {"pick": lambda *_: {}},
    "cannot answer": {"process": raising},
    "answers None": {"process": lambda _: None},
    "answers with a stranger": {"process": lambda results: SchedulingResult(results, "stranger")},
    "answers with nothing": {
        "process": lambda _: SchedulingResult({"0": ProfileResult("0")}, "0"),
    },
}


@dataclass(frozen=True)
class FilterSpec:
    """A filter that keeps some names, a faulty one, or a composite one."""

    keeps: str = NAMES
    bad: str = ""
    inner: tuple["FilterSpec", ...] = ()
    how: str = "chain"
    fails_open: bool = True


@dataclass(frozen=True)
class ScorerSpec:
    """A scorer of fixed scores by name, or a faulty one."""

    scores: tuple[float, ...]
    weight: float
    bad: str = ""


@dataclass(frozen=True)
class ProfileSpec:
    """The parts of a profile."""

    filters: tuple[FilterSpec, ...]
    scorers: tuple[ScorerSpec, ...]
    picker: str


@dataclass(frozen=True)
class GraphSpec:
    """A whole graph."""

    profiles: tuple[ProfileSpec, ...]
    together: bool
    handler: str
    hooks: tuple[bool, ...]
    disable_after: int
    seed: int


PLAIN = st.builds(
    FilterSpec,
    keeps=st.sets(st.sampled_from(NAMES), min_size=2).map(lambda names: "".join(sorted(names))),
    bad=st.sampled_from(["", "", *BAD_FILTERS]),
    fails_open=st.booleans(),
) | st.just(FilterSpec(keeps=""))
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.builds(
        FilterSpec,
        inner=st.lists(inner, min_size=1, max_size=3).map(tuple),
        how=st.sampled_from(["chain", "either", "or drop", "chain, then raise"]),
        fails_open=st.booleans(),
    ),
    max_leaves=6,
)
SCORERS = st.builds(
    ScorerSpec,
    scores=st.tuples(*[st.sampled_from([0.0, 0.25, 1.0, -1.0, 1.5, NAN, float("inf"), 1])] * 5),
    weight=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    bad=st.sampled_from(["", "", "", *BAD_SCORERS]),
)
PROFILES = st.builds(
    ProfileSpec,
    filters=st.lists(NESTED, max_size=3).map(tuple),
    scorers=st.lists(SCORERS, max_size=4).map(tuple),
    picker=st.sampled_from(["max", "max", "random", *BAD_PICKERS]),
)
GRAPHS = st.builds(
    GraphSpec,
    profiles=st.lists(PROFILES, min_size=1, max_size=3).map(tuple),
    together=st.booleans(),
    handler=st.sampled_from(["good"] * len(BAD_HANDLERS) + [*BAD_HANDLERS]),
    hooks=st.lists(st.booleans(), max_size=2).map(tuple),
    disable_after=st.sampled_from([0, 1, 2]),
    seed=st.integers(0, 1000),
)


def kept_by(spec: FilterSpec, names: str) -> str:
    """Return the endpoints that a filter is expected to keep.

    Raises:
        DroppedError: It drops the request.
    """
    if not names:
        return ""
    on_failure = names if spec.fails_open else ""
    if spec.bad:
        return on_failure
    if not spec.inner:
        return "".join(name for name in names if name in spec.keeps)
    if spec.how in {"chain", "chain, then raise"}:
        kept = names
        for each in spec.inner:
            kept = kept_by(each, kept)
        return kept if spec.how == "chain" else on_failure
    for each in spec.inner:
        if kept := kept_by(each, names):
            return kept
    if spec.how == "or drop":
        raise DroppedError("", "", "")
    return ""


def totals_of(specs: Sequence[ScorerSpec], names: str) -> list[float]:
    """Return the expected totals."""
    totals = []
    for name in names:
        total = 0.0
        for spec in specs:
            score = spec.scores[NAMES.index(name)]
            usable = not spec.bad and score == score  # noqa: PLR0124 - NaN is not
            total += spec.weight * max(0.0, min(1.0, score)) if usable else 0.0
        totals.append(total)
    return totals


class Built:
    """A graph of stubs."""

    def __init__(self, spec: GraphSpec) -> None:
        self.seed = spec.seed
        self.policies: dict[str, bool] = {}
        self.filters = [
            [self._filter(each, f"filter-{n}-{m}") for m, each in enumerate(profile.filters)]
            for n, profile in enumerate(spec.profiles)
        ]
        self.guards = GuardRails(
            observer=NullObserver(), fails_open=self.policies, disable_after=spec.disable_after
        )
        profiles = {str(n): self._profile(n, each) for n, each in enumerate(spec.profiles)}
        rounds = [[*profiles]] if spec.together else [[name] for name in profiles]
        handler = HandlerStub(*rounds, **BAD_HANDLERS.get(spec.handler, {}))
        hooks = [
            HookStub(f"hook-{n}") if good else HookStub(f"hook-{n}", raising, raising)
            for n, good in enumerate(spec.hooks)
        ]
        self.scheduler = Scheduler(
            handler, profiles, pre_schedule=hooks, post_schedule=hooks, guards=self.guards
        )

    def _profile(self, number: int, spec: ProfileSpec) -> SchedulerProfile:
        rng = random.Random(self.seed)
        pickers = {
            "max": max_score.MaxScorePicker("max", max_score.Params(), rng=rng),
            "random": random_picker.RandomPicker("random", random_picker.Params(), rng=rng),
        }
        return SchedulerProfile(
            name=str(number),
            filters=self.filters[number],
            scorers=[
                WeightedScorer(self._scorer(each, f"scorer-{number}-{n}"), each.weight)
                for n, each in enumerate(spec.scorers)
            ],
            picker=pickers.get(spec.picker) or PickerStub(BAD_PICKERS[spec.picker]),
            guards=self.guards,
            rng=rng,
        )

    def _filter(self, spec: FilterSpec, name: str) -> Filter:
        self.policies[name] = spec.fails_open
        if not spec.inner:
            keeping = BAD_FILTERS.get(spec.bad) or (
                lambda given: [e for e in given if e.name in spec.keeps]
            )
            return FilterStub(name, keeping)
        inner = [self._filter(each, f"{name}-{n}") for n, each in enumerate(spec.inner)]

        def answer(endpoints: Sequence[Endpoint], run: FilterRun) -> Sequence[Endpoint]:
            if spec.how in {"chain", "chain, then raise"}:
                for each in inner:
                    endpoints = run(each, endpoints)
                return endpoints if spec.how == "chain" else raising()
            for each in inner:
                if kept := run(each, endpoints):
                    return kept
            return run.drop(inner[-1], "full") if spec.how == "or drop" else []

        return TreeStub(name, answer)

    def _scorer(self, spec: ScorerSpec, name: str) -> ScorerStub:
        fixed = dict(zip(NAMES, spec.scores, strict=True))
        scoring = BAD_SCORERS.get(spec.bad) or (lambda given: [fixed[e.name] for e in given])
        return ScorerStub(name, scoring)


def outcome(built: Built) -> SchedulingResult | SchedulingError:
    try:
        return built.scheduler.schedule(make_request(), POOL)
    except SchedulingError as error:
        return error


def check_profile(spec: ProfileSpec, result: ProfileResult) -> None:
    """Compare one profile's result with the expected one."""
    names = NAMES
    try:
        for each in spec.filters:
            names = kept_by(each, names)
    except DroppedError:
        assert isinstance(result.error, DroppedError)
        assert not result.endpoints
        return
    assert "".join(each.endpoint.name for each in result.scored) == names
    gone = [name for names in result.removed.values() for name in names]
    assert sorted(gone) == sorted(set(NAMES) - set(names))
    if not names:
        assert isinstance(result.error, NoEndpointsError)
        assert not result.endpoints
        return
    assert result.error is None
    totals = totals_of(spec.scorers, names)
    assert [each.score for each in result.scored] == totals
    best = result.endpoints[0]
    assert best.endpoint.name in names
    if spec.picker != "random":
        assert best.score == max(totals)


@settings(max_examples=150)
@given(GRAPHS)
def test_schedule_follows_the_rules_whatever_the_plugins_do(spec: GraphSpec) -> None:
    built, again = Built(spec), Built(spec)
    for _ in range(4):  # the same request, while more and more plugins are turned off
        result, repeated = outcome(built), outcome(again)
        if isinstance(result, SchedulingError):
            assert (type(repeated), str(repeated)) == (type(result), str(result))
            continue
        assert isinstance(repeated, SchedulingResult)
        assert spec.handler == "good"
        for name, each in result.profiles.items():
            check_profile(spec.profiles[int(name)], each)
        names = [s.endpoint.name for s in result.endpoints]
        assert names == [s.endpoint.name for s in repeated.endpoints]
        assert names


@given(GRAPHS)
def test_a_good_handler_fails_only_if_every_profile_does(spec: GraphSpec) -> None:
    result = outcome(Built(spec))
    if spec.handler != "good":
        assert isinstance(result, SchedulingError)
        return
    if isinstance(result, SchedulingError):
        assert isinstance(result, NoEndpointsError | DroppedError)
        for profile in spec.profiles:
            names = NAMES
            try:
                for each in profile.filters:
                    names = kept_by(each, names)
            except DroppedError:
                names = ""
            assert not names
