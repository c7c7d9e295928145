"""A case of the reference's tests: the request, the reference's response, and our response."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epp.ext_proc.settings import Compat
from parity.envoy import SUBSET_KEY, SUBSET_NAMESPACE, Step, exchange
from parity.transcript import FACTS, RESTORED
from parity.worlds import Running, World


@dataclass(frozen=True, slots=True)
class Ours:
    """What we answer where the reference answers otherwise."""

    value: object
    row: str
    """The case in docs/differences.md that tells of it."""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric whose growth the reference's test looks at."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    is_level: bool = False
    """A gauge: what counts is its value and not its growth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case."""

    name: str
    """As in the catalogue."""
    also: tuple[str, ...] = ()
    """Other names in the catalogue that ask for the same."""
    world: World
    steps: tuple[Step, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    subset: tuple[str, ...] | None = None
    """The gateway's hint, as the reference's addresses; None for none."""
    series: tuple[Series, ...] = ()
    """What ``metrics`` is about."""
    reference: Mapping[str, object]
    """What the reference answers, by the facts of a transcript that its test looks at."""
    ours: Mapping[str, Ours] = field(default_factory=dict)
    """What of it is other here."""
    ours_in_compat: Mapping[str, Ours] = field(default_factory=dict)
    """What is other even with ``--compat=reference``, of the facts that it restores."""

    def __post_init__(self) -> None:
        facts = self.reference.keys()
        assert facts <= FACTS, facts - FACTS
        assert self.ours.keys() <= facts, self.ours.keys() - facts
        assert self.ours_in_compat.keys() <= facts & RESTORED

    def deviations(self, compat: Compat) -> Mapping[str, Ours]:
        """Return what is other under ``compat``."""
        if compat == "none":
            return self.ours
        kept = {fact: each for fact, each in self.ours.items() if fact not in RESTORED}
        return {**kept, **self.ours_in_compat}

    def wanted(self, compat: Compat) -> dict[str, object]:
        """Return the facts that must come of it."""
        others = {fact: each.value for fact, each in self.deviations(compat).items()}
        return {**self.reference, **others}

    async def play(self, running: Running) -> dict[str, object]:
        """Send the case's messages and return the facts that came of them."""
        metadata = dict(self.metadata)
        if self.subset is not None:
            real = [running.real(each) for each in self.subset]
            metadata[SUBSET_NAMESPACE] = {SUBSET_KEY: real}
        before = [0.0 if each.is_level else self._total(running, each) for each in self.series]
        transcript = await exchange(
            running.channel, self.steps, metadata=metadata, names=running.names
        )
        transcript.metrics = {
            each.metric: self._total(running, each) - earlier
            for each, earlier in zip(self.series, before, strict=True)
        }
        return transcript.facts()

    def _total(self, running: Running, series: Series) -> float:
        return running.total(series.metric, dict(series.labels))
