"""Weighted mixes: which share of the requests has which tenant, objective, adapter and SLO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite
from random import Random
from typing import Generic, TypeVar

from epp.lab.traffic.errors import TrafficError

ChoiceT = TypeVar("ChoiceT")


@dataclass(frozen=True, slots=True)
class Mix(Generic[ChoiceT]):
    """Choices with weights.

    Raises:
        TrafficError: A weight is out of range, or all are 0.
    """

    choices: Sequence[ChoiceT]
    weights: Sequence[float]
    """One for each choice; only their ratio counts."""
    _sums: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for choice, weight in zip(self.choices, self.weights, strict=True):
            if not (isfinite(weight) and weight >= 0):
                raise TrafficError(f"weight {weight} of {choice!r} is not a number of 0 or more")
        object.__setattr__(self, "_sums", list(accumulate(self.weights)))
        if not self._sums or not self._sums[-1]:
            raise TrafficError("give at least one weight above 0")

    @classmethod
    def of(cls, weights: "Mapping[ChoiceT, float]") -> "Mix[ChoiceT]":
        """Return the mix of a mapping from choice to weight."""
        return cls(tuple(weights), tuple(weights.values()))

    @classmethod
    def ranked(cls, choices: "Sequence[ChoiceT]", skew: float) -> "Mix[ChoiceT]":
        """Return a mix by Zipf's law: choice N has the weight `1 / N ** skew`; 0 for equal."""
        return cls(choices, tuple((rank + 1) ** -skew for rank in range(len(choices))))

    def draw(self, rng: Random) -> ChoiceT:
        """Return a random choice."""
        return rng.choices(self.choices, cum_weights=self._sums)[0]


@dataclass(frozen=True, slots=True)
class RequestSlo:
    """The limits that a request asks for in its headers."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The data of a request besides its prompt."""

    tenant: str = ""
    objective: str = ""
    adapter: str = ""
    slo: RequestSlo = RequestSlo()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMix:
    """A mix for each kind of label; None leaves the label unchanged."""

    tenants: Mix[str] | None = None
    objectives: Mix[str] | None = None
    adapters: Mix[str] | None = None
    slos: Mix[RequestSlo] | None = None

    def draw(self, rng: Random, labels: Labels) -> Labels:
        """Return `labels` with those replaced that have a mix, independently of one another."""
        return Labels(
            tenant=self.tenants.draw(rng) if self.tenants else labels.tenant,
            objective=self.objectives.draw(rng) if self.objectives else labels.objective,
            adapter=self.adapters.draw(rng) if self.adapters else labels.adapter,
            slo=self.slos.draw(rng) if self.slos else labels.slo,
        )
