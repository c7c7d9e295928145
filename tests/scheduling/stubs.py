"""Plugins with given behaviour, and an observer that records its notifications."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from epp.scheduling import (
    CompositeFilter,
    CycleState,
    Endpoint,
    Filter,
    FilterRun,
    LLMRequest,
    Picker,
    Plugin,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
    ScoredEndpoint,
    Scorer,
    described,
)
from epp.testing import make_endpoint

Names = Sequence[str]


class StubError(Exception):
    """The error of stubs."""


def raising(*_: object) -> Any:
    raise StubError("on purpose")


def pods(*names: str) -> list[Endpoint]:
    return [make_endpoint(name) for name in names]


class FilterStub(Filter):
    """Returns ``answer(endpoints)``."""

    type = "filter-stub"

    def __init__(self, name: str, answer: Callable[[Sequence[Endpoint]], Any]) -> None:
        self.name = name
        self.answer = answer
        self.calls = 0

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        self.calls += 1
        kept: list[Endpoint] = self.answer(endpoints)
        return kept


class ClosedFilterStub(FilterStub):
    """A stub filter that fails closed."""

    fails_open = False


def without(*names: str) -> FilterStub:
    """Return a filter ``not-NAMES`` that removes the endpoints of those names."""
    return FilterStub(
        f"not-{'-'.join(names)}", lambda given: [e for e in given if e.name not in names]
    )


class TreeStub(CompositeFilter):
    """Returns ``answer(endpoints, run)``."""

    type = "tree-stub"

    def __init__(self, name: str, answer: Callable[[Sequence[Endpoint], FilterRun], Any]) -> None:
        self.name = name
        self.answer = answer

    def filter_with(
        self,
        request: LLMRequest,
        endpoints: Sequence[Endpoint],
        state: CycleState,
        run: FilterRun,
    ) -> Sequence[Endpoint]:
        kept: Sequence[Endpoint] = self.answer(endpoints, run)
        return kept


class ScorerStub(Scorer):
    """Returns ``answer(endpoints)``."""

    type = "scorer-stub"

    def __init__(self, name: str, answer: Callable[[Sequence[Endpoint]], Any]) -> None:
        self.name = name
        self.answer = answer
        self.calls = 0

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        self.calls += 1
        scores: list[float] = self.answer(endpoints)
        return scores


def fixed(*scores: Any) -> ScorerStub:
    """Return a scorer ``fixed`` that always returns ``scores``."""
    return ScorerStub("fixed", lambda _: list(scores))


class PickerStub(Picker):
    """Returns ``answer(candidates)``; the best candidate without an ``answer``."""

    type = "picker-stub"
    name = "picker"

    def __init__(self, answer: Callable[[Sequence[ScoredEndpoint]], Any] | None = None) -> None:
        self.answer = answer or (lambda scored: [max(scored, key=lambda s: s.score)])

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        picked: list[ScoredEndpoint] = self.answer(scored)
        return picked


class HandlerStub(ProfileHandler):
    """Runs the given profiles round by round; the last one with an endpoint is the primary one."""

    type = "handler-stub"
    name = "handler"

    def __init__(
        self,
        *rounds: Names,
        pick: Callable[[Mapping[str, SchedulerProfile], Mapping[str, ProfileResult]], Any]
        | None = None,
        process: Callable[[Mapping[str, ProfileResult]], Any] | None = None,
    ) -> None:
        self.rounds = rounds
        self.pick = pick or self._by_rounds
        self.process = process or last_good
        self.seen: list[list[str]] = []

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        if not results:
            self.seen.clear()
        self.seen.append(list(results))
        picked: Mapping[str, SchedulerProfile] = self.pick(profiles, results)
        return picked

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        result: SchedulingResult = self.process(results)
        return result

    def _by_rounds(
        self, profiles: Mapping[str, SchedulerProfile], results: Mapping[str, ProfileResult]
    ) -> Mapping[str, SchedulerProfile]:
        number = len(self.seen) - 1
        names = self.rounds[number] if number < len(self.rounds) else ()
        stranger = SchedulerProfile(name="stranger", picker=PickerStub())
        return {name: profiles.get(name, stranger) for name in names}


def last_good(results: Mapping[str, ProfileResult]) -> SchedulingResult:
    good = [name for name, result in results.items() if result.error is None]
    if not good:
        raise next(r.error for r in results.values() if r.error)
    return SchedulingResult(results, good[-1])


class HookStub(PreSchedule, PostSchedule):
    """Calls ``before`` and ``after``."""

    type = "hook-stub"

    def __init__(
        self,
        name: str,
        before: Callable[[Sequence[Endpoint], CycleState], object] = lambda *_: None,
        after: Callable[[SchedulingResult, CycleState], object] = lambda *_: None,
    ) -> None:
        self.name = name
        self.before = before
        self.after = after

    def pre_schedule(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> None:
        self.before(endpoints, state)

    def post_schedule(
        self, request: LLMRequest, result: SchedulingResult, state: CycleState
    ) -> None:
        self.after(result, state)


class Watcher:
    """A plugin observer that records its notifications."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failures: list[tuple[str, str, str]] = []
        self.disabled: list[tuple[str, int]] = []
        self.corrected: list[tuple[str, int, int]] = []

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        def timed(seconds: float) -> None:
            assert seconds >= 0
            self.calls.append((extension_point, plugin.name))

        return timed

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        self.failures.append((extension_point, plugin.name, described(error)))

    def plugin_disabled(self, plugin: Plugin, failures: int) -> None:
        self.disabled.append((plugin.name, failures))

    def scores_corrected(self, plugin: Plugin, outside: int, not_numbers: int) -> None:
        self.corrected.append((plugin.name, outside, not_numbers))

    def apart(self) -> "Watcher":
        return self

    def retire(self) -> None:
        raise AssertionError("the scheduling does not know when a graph is replaced")
