"""The kinds of faults: the fields of each in a document, and its effect on a server."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Self

from epp.lab.fleet.faults.fields import Fields
from epp.lab.fleet.faults.state import ServerFaults

TOLERANCE_SECONDS = 1e-9
"""A fault begins and ends this much early, so that rounding at its edges does not matter."""
_UNAVAILABLE = 503


class Effect(ABC):
    """The effect of a fault, with the parameters of its kind."""

    kind: ClassVar[str]
    """Name in documents."""
    default_seconds: ClassVar[float] = inf
    """Duration of a fault without `for`; infinity: until the end of the run."""

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """Read the parameters.

        Raises:
            ConfigError: One is invalid.
        """
        del fields
        return cls()

    @abstractmethod
    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        """Add the fault to the active ones.

        Args:
            faults: The faults of the server, without this one.
            elapsed: Seconds since the beginning of this one, below `seconds`.
            seconds: Its duration.
        """

    def count(self, faults: ServerFaults, *, begun: int, ended: int) -> None:
        """Add the lasting effects, such as restarts, of all faults that have begun or ended."""
        del faults, begun, ended

    def whole_seconds(self, seconds: float) -> float:
        """Return for how long a fault with the field `for: seconds` affects the server."""
        return seconds

    def scaled(self, factor: float) -> Effect:
        """Return the same effect with its own times multiplied by `factor`."""
        del factor
        return self

    def changes(self, seconds: float) -> Iterator[float]:
        """Yield the times of changes before the end, in seconds after the beginning."""
        del seconds
        return iter(())


@dataclass(frozen=True, slots=True)
class Crash(Effect):
    """The process dies; after `for` it starts again, and loads the model for `loading`."""

    kind = "crash"
    default_seconds = 10.0

    loading_seconds: float

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.seconds("loading", 0.0))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        if elapsed + TOLERANCE_SECONDS < seconds - self.loading_seconds:
            faults.refuse = True
        else:
            faults.loading = True

    def count(self, faults: ServerFaults, *, begun: int, ended: int) -> None:
        faults.restarts += begun

    def whole_seconds(self, seconds: float) -> float:
        return seconds + self.loading_seconds

    def scaled(self, factor: float) -> Crash:
        return Crash(self.loading_seconds * factor)

    def changes(self, seconds: float) -> Iterator[float]:
        if self.loading_seconds:
            yield seconds - self.loading_seconds


class Refuse(Effect):
    """The server refuses connections."""

    kind = "refuse"

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.refuse = True


@dataclass(frozen=True, slots=True)
class Hang(Effect):
    """The server accepts requests and does not respond."""

    kind = "hang"

    of_generation: bool

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.choice("scope", ("all", "generation"), "all") == "generation")

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        if self.of_generation:
            faults.hang_generation = True
        else:
            faults.hang = True


@dataclass(frozen=True, slots=True)
class Error(Effect):
    """The server responds to a share of the generation requests with an error, at once."""

    kind = "error"

    status: int
    share: float

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.status("status", 500), fields.share("share", 1.0))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.error_status, faults.error_share = self.status, self.share


@dataclass(frozen=True, slots=True)
class Straggler(Effect):
    """The engine is slower; several factors multiply."""

    kind = "straggler"

    speed: float

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.number("speed", 0.3))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.speed *= self.speed


class ColdStart(Effect):
    """The process starts: it responds with 503 until it has loaded the model."""

    kind = "cold-start"
    default_seconds = 30.0

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.loading = True

    def count(self, faults: ServerFaults, *, begun: int, ended: int) -> None:
        faults.restarts += begun


@dataclass(frozen=True, slots=True)
class Flapping(Effect):
    """`/health` fails in the first part of each period, and works in the rest."""

    kind = "flapping"

    period: float
    share: float

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.positive_seconds("period", 10.0), fields.share("share", 0.5))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        if (elapsed + TOLERANCE_SECONDS) % self.period < self.period * self.share:
            faults.health_status = _UNAVAILABLE

    def scaled(self, factor: float) -> Flapping:
        return Flapping(self.period * factor, self.share)

    def changes(self, seconds: float) -> Iterator[float]:
        for number in itertools.count():
            for share in (0.0, self.share):
                after = (number + share) * self.period
                if after >= seconds:
                    return
                if after:
                    yield after


@dataclass(frozen=True, slots=True)
class AddressReuse(Effect):
    """Another server gets the address, with an empty cache; the first one returns at the end."""

    kind = "address-reuse"

    model: str | None

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.optional_text("model"))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.taken_over, faults.model = True, self.model

    def count(self, faults: ServerFaults, *, begun: int, ended: int) -> None:
        faults.restarts += begun + ended


@dataclass(frozen=True, slots=True)
class MetricsSlow(Effect):
    """`/metrics` responds after `delay`."""

    kind = "metrics-slow"

    delay_seconds: float

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.positive_seconds("delay", 2.0))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.metrics_delay_seconds += self.delay_seconds


class MetricsStale(Effect):
    """`/metrics` repeats the page from the beginning of the fault."""

    kind = "metrics-stale"

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.stale_metrics = True


class MetricsGarbled(Effect):
    """`/metrics` responds with text that is no metrics page."""

    kind = "metrics-garbled"

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.garbled_metrics = True


@dataclass(frozen=True, slots=True)
class MetricsMissing(Effect):
    """`/metrics` responds with an error."""

    kind = "metrics-missing"

    status: int

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.status("status", 404))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.metrics_status = self.status


@dataclass(frozen=True, slots=True)
class MetricsPartial(Effect):
    """`/metrics` lacks some families."""

    kind = "metrics-partial"

    without: tuple[str, ...]

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.words("without", ("num_requests_waiting", "num_queue_reqs")))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.left_out_metrics += self.without


@dataclass(frozen=True, slots=True)
class KvEventsGap(Effect):
    """A share of the KV-event messages is lost; a replay has them."""

    kind = "kv-events-gap"

    share: float

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.share("share", 1.0))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.kv_events_lost_share = self.share


@dataclass(frozen=True, slots=True)
class KvEventsReorder(Effect):
    """A share of the KV-event messages is sent after the next one."""

    kind = "kv-events-reorder"

    share: float

    @classmethod
    def read(cls, fields: Fields) -> Self:
        return cls(fields.share("share", 0.5))

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        faults.kv_events_swapped_share = self.share


class KvEventsRestart(Effect):
    """The publisher of KV events restarts: sequence numbers begin with 0, nothing is replayed."""

    kind = "kv-events-restart"
    default_seconds = 0.0

    def apply(self, faults: ServerFaults, elapsed: float, seconds: float) -> None:
        pass  # It has no duration.

    def count(self, faults: ServerFaults, *, begun: int, ended: int) -> None:
        faults.kv_events_restarts += begun


EFFECTS: dict[str, type[Effect]] = {
    each.kind: each
    for each in (
        Crash,
        Refuse,
        Hang,
        Error,
        Straggler,
        ColdStart,
        Flapping,
        AddressReuse,
        MetricsSlow,
        MetricsStale,
        MetricsGarbled,
        MetricsMissing,
        MetricsPartial,
        KvEventsGap,
        KvEventsReorder,
        KvEventsRestart,
    )
}
"""The kinds by name."""
