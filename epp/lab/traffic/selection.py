"""The fields that every source has: selection of requests, arrival times, and labels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from epp.lab.traffic import workload as steps
from epp.lab.traffic.arrival_fields import parse_arrivals
from epp.lab.traffic.arrivals import ArrivalProcess
from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.fields import DurationField, parse, seconds
from epp.lab.traffic.mix import LabelMix, Mix, RequestSlo
from epp.lab.traffic.workload import BLOCK_TOKENS, Conversation


class CommonFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of each kind of source."""

    arrivals: dict[str, Any] | None = None
    limit: int | None = None
    skip: int = 0
    duration: DurationField | None = None
    time_scale: float = 1.0
    max_prompt_tokens: int | None = None
    tenants: dict[str, float] | None = None
    objectives: dict[str, float] | None = None
    adapters: dict[str, float] | None = None
    slos: list[dict[str, Any]] | None = None


class SloChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of the SLOs that requests ask for."""

    weight: float = 1.0
    ttft: DurationField | None = None
    tpot: DurationField | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """The context in which a source is read."""

    seed: int
    """Seed of everything random."""
    folder: Path
    """Base folder of relative paths."""
    where: str
    """Name of the description, for errors."""
    name: str
    """Name of the source; different names give different texts and random numbers."""

    def rng(self, purpose: str) -> Random:
        """Return the random generator for one purpose; each has its own."""
        return Random(f"{self.seed}:{self.name}:{purpose}")  # noqa: S311 - reproducible, not secret


@dataclass(frozen=True, slots=True)
class ConversationSource:
    """Conversations with local indexes."""

    conversations: Callable[[], Iterator[Conversation]]
    concurrency: int | None
    """Number of clients of a closed loop; None: the conversations have times."""
    ends: bool
    """Whether the conversations come to an end."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens per block in which prompts share prefixes."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When the conversations of a source arrive."""

    open_loop: ArrivalProcess | None = None
    """The process; None in a closed loop."""
    concurrency: int | None = None
    """Number of clients of a closed loop."""

    @classmethod
    def of(cls, fields: CommonFields, context: Context) -> "Arrivals | None":
        """Return the arrivals of the field; None if it is missing."""
        if fields.arrivals is None:
            return None
        parsed = parse_arrivals(fields.arrivals, f"{context.where}.arrivals")
        return cls(concurrency=parsed) if isinstance(parsed, int) else cls(open_loop=parsed)

    @property
    def ends(self) -> bool:
        """Whether they come to an end."""
        return self.open_loop is not None and not self.open_loop.is_endless

    def times(self, context: Context) -> Iterator[float | None]:
        """Yield the times; None for ever in a closed loop."""
        if self.open_loop is None:
            return repeat(None)
        return self.open_loop.times(context.rng("arrivals"))


def select(
    source: ConversationSource, fields: CommonFields, context: Context
) -> ConversationSource:
    """Return the source after the fields have filtered, scaled, ended and labelled it.

    Raises:
        TrafficError: A field is out of range.
    """
    _check(fields, context.where)
    mix = _label_mix(fields, context.where)
    length = fields.duration
    until = None if length is None else seconds(length, f"{context.where}.duration")
    if until is not None and source.concurrency is not None:
        raise TrafficError(
            f"{context.where}.duration: needs arrivals with times; give limit in a closed loop"
        )

    def make() -> Iterator[Conversation]:
        kept = source.conversations()
        if fields.skip:
            kept = steps.skipping(kept, fields.skip)
        if fields.max_prompt_tokens is not None:
            kept = steps.without_long(kept, fields.max_prompt_tokens)
        if fields.time_scale != 1:
            kept = steps.scaled(kept, fields.time_scale)
        if until is not None:
            kept = steps.ending(kept, until)
        if fields.limit is not None:
            kept = steps.limited(kept, fields.limit)
        return kept if mix is None else steps.labelled(kept, mix, context.rng("labels"))

    ends = source.ends or fields.limit is not None or until is not None
    return replace(source, conversations=make, ends=ends)


def _check(fields: CommonFields, where: str) -> None:
    for name in ("limit", "max_prompt_tokens"):
        value = getattr(fields, name)
        if value is not None and value < 1:
            raise TrafficError(f"{where}.{name}: {value} is not above 0")
    if fields.skip < 0:
        raise TrafficError(f"{where}.skip: {fields.skip} is below 0")
    if not (isfinite(fields.time_scale) and fields.time_scale > 0):
        raise TrafficError(f"{where}.time_scale: {fields.time_scale} is not above 0")


def _label_mix(fields: CommonFields, where: str) -> LabelMix | None:
    mixes: dict[str, Mix[str]] = {}
    for name in ("tenants", "objectives", "adapters"):
        weights: dict[str, float] | None = getattr(fields, name)
        if weights is not None:
            mixes[name] = _mix(weights, f"{where}.{name}")
    slos = None if fields.slos is None else _slo_mix(fields.slos, f"{where}.slos")
    return LabelMix(**mixes, slos=slos) if mixes or slos else None


def _mix(weights: dict[str, float], where: str) -> Mix[str]:
    for name in weights:
        if not (name.isascii() and name.isprintable()) or name != name.strip():
            raise TrafficError(f"{where}: {name!r} cannot be sent in a header")
    try:
        return Mix.of(weights)
    except TrafficError as error:
        raise TrafficError(f"{where}: {error}") from None


def _slo_mix(documents: list[dict[str, Any]], where: str) -> Mix[RequestSlo]:
    choices, weights = [], []
    for number, document in enumerate(documents):
        place = f"{where}[{number}]"
        fields = parse(document, SloChoice, place)
        limits = (
            None if value is None else seconds(value, f"{place}.{name}")
            for name, value in (("ttft", fields.ttft), ("tpot", fields.tpot))
        )
        choices.append(RequestSlo(*limits))
        weights.append(fields.weight)
    try:
        return Mix(choices, weights)
    except TrafficError as error:
        raise TrafficError(f"{where}: {error}") from None
