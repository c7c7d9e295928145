"""Requests of other endpoint pickers in flight at one endpoint."""

from bisect import insort
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from math import inf, isfinite
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, Self

MOST_PROMPTS: Final = 64
"""Maximum prompts of one endpoint that are reported one by one."""
_MOST_REQUESTS = 1_000_000
_MOST_UNITS = 1e9
_MOST_AGE_SECONDS = 1e6

_NO_PROMPTS: Final[Mapping[int, "OtherPrompt"]] = MappingProxyType({})
_by_time = attrgetter("sent_at")


class Prompt(Protocol):
    """A prompt of this process."""

    number: int
    sent_at: float
    units: float


class PromptPart(NamedTuple):
    """A prompt before its first token, as endpoint pickers report it."""

    number: int
    """Identifies the prompt among those of its endpoint picker."""
    age_seconds: float
    """Time since it was sent."""
    units: float
    """Its uncached tokens, in units."""


class Part(NamedTuple):
    """One endpoint picker's requests in flight at one endpoint, as it reports them."""

    decoding: int
    """Requests after their first token."""
    idle_seconds: float
    """Time since the first token before that of the oldest prompt; below 0 if there was none."""
    further: int
    """Number of prompts beyond ``prompts``."""
    further_units: float
    """Uncached tokens of the further prompts, in units."""
    prompts: list[PromptPart]
    """Up to ``MOST_PROMPTS`` prompts, the oldest first."""

    @classmethod
    def of(
        cls,
        pending: Collection[Prompt],
        pending_units: float,
        idle_at: float,
        decoding: int,
        now: float,
    ) -> Self:
        """Return the report on an endpoint.

        Args:
            pending: Its prompts before their first token, the oldest first.
            pending_units: Sum of their uncached tokens, in units.
            idle_at: When the prompt before these was done; -inf if there was none.
            decoding: Its requests after their first token.
            now: Seconds of the clock.
        """
        if not pending:
            return cls(decoding, -1.0, 0, 0.0, [])
        prompts = [
            PromptPart(each.number, max(0.0, now - each.sent_at), each.units)
            for each in islice(pending, MOST_PROMPTS)
        ]
        further = len(pending) - len(prompts)
        units = pending_units - sum(each.units for each in prompts) if further else 0.0
        idle_seconds = now - idle_at if idle_at > -inf else -1.0
        return cls(decoding, idle_seconds, further, units, prompts)


class OtherPrompt:
    """A prompt of another endpoint picker before its first token."""

    __slots__ = ("is_counted", "sent_at", "units")

    def __init__(self, sent_at: float, units: float) -> None:
        self.sent_at = sent_at
        self.units = units
        self.is_counted = False
        """Whether the server's counter has shown its first token before its endpoint picker
        reported it."""


class OthersWork:
    """The requests of all other endpoint pickers at one endpoint.

    Times are those of the model's clock.
    """

    __slots__ = (
        "_parts",
        "_prompts",
        "_waiting",
        "decoding",
        "head_units",
        "idle_at",
        "oldest_at",
        "pending",
        "units",
    )

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._prompts: dict[str, dict[int, OtherPrompt]] = {}
        """By endpoint picker and number."""
        self._waiting: list[OtherPrompt] = []
        """Prompts without a known first token, the oldest first."""
        self.idle_at = -inf
        """When the latest first token came, as far as known."""
        self.pending = 0
        """Requests before their first token."""
        self.units = 0.0
        """Sum of the uncached tokens of ``pending``, in units."""
        self.decoding = 0
        """Requests after their first token."""
        self.oldest_at = inf
        """When the oldest prompt was sent; inf without prompts. If none is known one by one, it
        counts as sent when that was noticed."""
        self.head_units = 0.0
        """Uncached tokens of the oldest prompt, in units; the mean if none is known one by one."""

    @property
    def requests(self) -> int:
        """Number of requests in flight."""
        return self.pending + self.decoding

    @property
    def waiting(self) -> Iterator[OtherPrompt]:
        """The prompts without a known first token, the oldest first."""
        return iter(self._waiting)

    def take(self, picker: str, part: Part | None, now: float) -> tuple[int, int]:
        """Replace the requests that an endpoint picker has in flight.

        Args:
            picker: Its name.
            part: Its report; None if it has none. Impossible numbers are bounded.
            now: Seconds of the clock.

        Returns:
            Number of new prompts, and number of prompts that have got their first token, or ended,
            although the server's counter has not shown it.
        """
        known = self._prompts.get(picker, _NO_PROMPTS)
        reported = part.prompts[:MOST_PROMPTS] if part is not None else []
        prompts: dict[int, OtherPrompt] = {}
        news = 0
        for number, age_seconds, units in reported:
            prompt = known.get(number) or prompts.get(number)
            if prompt is None:
                sent_at = now - _bounded(age_seconds, _MOST_AGE_SECONDS)
                prompt = OtherPrompt(sent_at, _bounded(units, _MOST_UNITS))
                insort(self._waiting, prompt, key=_by_time)
                news += 1
            prompts[number] = prompt
        begun = 0
        if len(known) + news > len(prompts):
            for number, prompt in known.items():
                if number not in prompts and not prompt.is_counted:
                    self._waiting.remove(prompt)
                    begun += 1
        before = self._parts.pop(picker, None)
        self._prompts.pop(picker, None)
        if part is not None:
            self._parts[picker], self._prompts[picker] = part, prompts
            if 0.0 <= part.idle_seconds <= _MOST_AGE_SECONDS:
                self.idle_at = max(self.idle_at, now - part.idle_seconds)
        if news or begun or not _has_same_numbers(part, before):
            self._sum_up(now)
        return news, begun

    def count(self, prompt: OtherPrompt, at: float) -> None:
        """Record the first token of a waiting prompt, which the server's counter has shown."""
        prompt.is_counted = True
        self._waiting.remove(prompt)
        self.idle_at = max(self.idle_at, at)
        self._sum_up(at)

    def _sum_up(self, now: float) -> None:
        parts, waiting = self._parts.values(), self._waiting
        self.decoding = sum(min(max(each.decoding, 0), _MOST_REQUESTS) for each in parts)
        further = sum(min(max(each.further, 0), _MOST_REQUESTS) for each in parts)
        self.pending = len(waiting) + further
        self.units = sum(each.units for each in waiting)
        self.units += sum(_bounded(each.further_units, _MOST_UNITS) for each in parts)
        if waiting:
            self.oldest_at, self.head_units = waiting[0].sent_at, waiting[0].units
        elif further:
            self.oldest_at, self.head_units = now, self.units / further
        else:
            self.oldest_at, self.head_units = inf, 0.0


NOTHING: Final = OthersWork()
"""For endpoints at which no other endpoint picker has requests; must not be changed."""


def _has_same_numbers(part: Part | None, other: Part | None) -> bool:
    if part is None or other is None:
        return part is other
    return (part.decoding, part.further, part.further_units) == (
        other.decoding,
        other.further,
        other.further_units,
    )


def _bounded(value: float, most: float) -> float:
    return min(max(value, 0.0), most) if isfinite(value) else 0.0
