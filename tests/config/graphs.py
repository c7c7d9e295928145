"""Minimal plugins, and graphs of them built from a few lines of YAML."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import msgspec

from epp.config import GraphBuilder, LoadedConfig, PluginGraph, PluginRegistry, load_text
from epp.flow_control.session_plugins import SECTION, SessionPlanMaker
from epp.request_control.plugins import DataProducer
from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    Picker,
    Plugin,
    ScoredEndpoint,
    Scorer,
    StateKey,
)

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"

FIRST = StateKey[int]("test-first")
SECOND = StateKey[int]("test-second")
ORPHAN = StateKey[int]("test-orphan")


Refer = Callable[[str, type[Filter]], Filter]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One of each kind."""

    size: int = 1
    names: list[str] = []


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The name of another plugin."""

    to: str


class Closable(Plugin):
    """Knows whether it is closed."""

    is_closed: bool = False

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


class KeepAll(Filter, Closable):
    """Keeps every endpoint; a size below 0 is refused, one above 100 is a bug."""

    type: ClassVar[str] = "keep-all-filter"

    def __init__(self, name: str, params: Params) -> None:
        if params.size < 0:
            raise ValueError("size must not be negative")
        self.name = name
        self.params = params
        self.inverse = 1 / (101 - min(params.size, 101))

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return list(endpoints)


class Raising(KeepAll):
    """Raises at every request."""

    type: ClassVar[str] = "raising-filter"

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        raise RuntimeError("always")


class Wrapping(KeepAll):
    """A filter around another one."""

    type: ClassVar[str] = "wrapping-filter"

    def __init__(self, name: str, params: Reference, *, refer: Refer) -> None:
        self.name = name
        self.inner = refer(params.to, Filter)

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return self.inner.filter(request, endpoints, state)


class RandomOrder(Filter):
    """Draws at every request."""

    type: ClassVar[str] = "random-order-filter"

    def __init__(self, name: str, params: Params, *, rng: Random | None = None) -> None:
        self.name = name
        self._random = rng or Random()
        self.draws = 0

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        self.draws += 1
        kept = self._random.choice(endpoints)
        return [kept]


class Reader(Scorer):
    """Reads what ``SecondProducer`` writes."""

    type: ClassVar[str] = "reading-scorer"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (SECOND,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return [1.0] * len(endpoints)


class OrphanReader(Reader):
    """Reads what nobody writes."""

    type: ClassVar[str] = "orphan-scorer"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (ORPHAN,)


class FirstProducer(DataProducer):
    """Writes the first key."""

    type: ClassVar[str] = "first-producer"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (FIRST,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = (FIRST,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        state.write(self.writes[0], 1)


class SecondProducer(FirstProducer):
    """Writes the second key out of the first."""

    type: ClassVar[str] = "second-producer"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (FIRST,)
    writes: ClassVar[tuple[StateKey[Any], ...]] = (SECOND,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = (SECOND,)


class CircularProducer(FirstProducer):
    """Writes the first key out of the second."""

    type: ClassVar[str] = "circular-producer"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (SECOND,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = ()


class LastPicker(Picker):
    """Picks the last endpoint."""

    type: ClassVar[str] = "last-picker"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        return [scored[-1]]


PLUGINS: tuple[type[Plugin], ...] = (
    CircularProducer,
    FirstProducer,
    KeepAll,
    LastPicker,
    OrphanReader,
    Raising,
    RandomOrder,
    Reader,
    SecondProducer,
    Wrapping,
)


def make_registry() -> PluginRegistry:
    """Return the installed plugins and those of this module."""
    registry = PluginRegistry.from_entry_points()
    for plugin in PLUGINS:
        registry.add(plugin)
    return registry


def make_builder(
    *, seed: int | None = 1, kinds: dict[str, type[Plugin]] | None = None
) -> GraphBuilder:
    """Return a builder without a data layer, unless ``kinds`` has its roles."""
    return GraphBuilder(
        make_registry(),
        services={"rng": lambda name: Random(None if seed is None else f"{seed}/{name}")},
        kinds=kinds,
        makers={SECTION: SessionPlanMaker()},
    )


def load(text: str, directory: Path = Path()) -> LoadedConfig:
    """Load what follows the first two lines of a configuration."""
    return load_text(HEAD + text, "test.yaml", directory)


def build(
    text: str, previous: PluginGraph | None = None, *, directory: Path = Path()
) -> PluginGraph:
    """Build what follows the first two lines of a configuration."""
    return make_builder().build(load(text, directory), previous)
