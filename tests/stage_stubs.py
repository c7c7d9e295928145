"""Stubs for tests of profile handlers with several stages."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from epp.observability.plugins import PluginCounter
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET, PreRequest
from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    Plugin,
    ProfileHandler,
    Scheduler,
    SchedulingResult,
    StageDecider,
)
from epp.testing import make_endpoint, make_profile, make_request
from epp_plugins.state_keys import PEER_ENDPOINT


class StubDecider(StageDecider):
    """Answers what it is told to, and notes the names of the endpoints it was asked about."""

    type: ClassVar[str] = "stub-decider"

    def __init__(self, name: str, answer: object) -> None:
        self.name = name
        self.asked: list[str | None] = []
        self._answer = answer

    def wants_stage(
        self, request: LLMRequest, endpoint: Endpoint | None, state: CycleState
    ) -> bool:
        self.asked.append(endpoint.name if endpoint else None)
        if isinstance(self._answer, Exception):
            raise self._answer
        return bool(self._answer)


def refer_to(*deciders: StageDecider) -> Callable[[str, type[Plugin]], Plugin]:
    """Return the service ``refer`` of a configuration with these deciders; yes and no are known."""
    known = [StubDecider("yes", answer=True), StubDecider("no", answer=False), *deciders]
    by_name = {each.name: each for each in known}
    return lambda name, kind: by_name[name]


class CountingMetrics:
    """Counts for all plugins together."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.labels: dict[str, tuple[str, ...]] = {}

    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> PluginCounter:
        self.labels[name] = tuple(labels)
        return _Counted(self.counts, name, len(labels))

    def gauge(self, *_: object, **__: object) -> None:
        raise AssertionError("handlers have no gauge")


@dataclass
class _Counted:
    counts: Counter[tuple[str, ...]]
    name: str
    label_count: int

    def inc(self, *labels: str) -> None:
        assert len(labels) == self.label_count
        self.counts[self.name, *labels] += 1

    def add(self, count: int, *labels: str) -> None:
        assert len(labels) == self.label_count
        self.counts[self.name, *labels] += count


class _Recorder(Filter):
    """Notes that its profile runs, and the peer that is published by then; removes by prefix."""

    type: ClassVar[str] = "recorder"

    def __init__(self, profile: str, runs: list[tuple[str, str]]) -> None:
        self.name = f"only-{profile}"
        self._profile = profile
        self._runs = runs

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        peer = state.read(PEER_ENDPOINT)
        self._runs.append((self._profile, peer.name if peer else ""))
        return [each for each in endpoints if each.name.startswith(self._profile)]


@dataclass
class Outcome:
    """What became of one request."""

    runs: list[tuple[str, str]]
    """Profiles in the order in which they ran, each with the peer published before it."""
    result: SchedulingResult
    headers: Mapping[str, str | None]
    state: CycleState


@dataclass
class Stages:
    """A scheduler whose profiles pick the endpoints whose names begin like the profile's."""

    handler: ProfileHandler
    profiles: Sequence[str] = ("decode", "encode", "prefill")
    after: Sequence[PreRequest] = ()
    """Plugins told of the choice, the handler first."""
    runs: list[tuple[str, str]] = field(default_factory=list)

    def send(
        self,
        endpoints: Sequence[str | Endpoint],
        headers: Mapping[str, str] | None = None,
        state: CycleState | None = None,
        **request: Any,
    ) -> Outcome:
        """Schedule one request, and tell the plugins."""
        self.runs.clear()
        state = CycleState() if state is None else state
        asked = make_request(headers=headers, **request)
        profiles = {
            name: make_profile(name=name, filters=[_Recorder(name, self.runs)])
            for name in self.profiles
        }
        pool = [
            make_endpoint(each, address=f"10.0.0.{place}:8000") if isinstance(each, str) else each
            for place, each in enumerate(endpoints, 1)
        ]
        result = Scheduler(self.handler, profiles).schedule(asked, pool, state)
        hooks = [self.handler] if isinstance(self.handler, PreRequest) else []
        for plugin in [*hooks, *self.after]:
            plugin.pre_request(asked, result, state)
        headers_to_set = state.read(REQUEST_HEADERS_TO_SET)
        return Outcome(list(self.runs), result, headers_to_set or {}, state)


def chosen(result: SchedulingResult) -> dict[str, list[str]]:
    """Return the names of the endpoints chosen, by profile."""
    return {
        profile: [each.endpoint.name for each in one.endpoints]
        for profile, one in result.profiles.items()
    }
