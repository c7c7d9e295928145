"""The queues that tenants share a pool by: what each has in flight and has used of late.

Those that the configuration lists make a tree. Every other fairness id gets a queue of its own when
it first comes, and loses it when it has nothing in flight and has used nothing to speak of; the
longest unused ones go first when there are too many.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import exp2, inf, log2
from typing import Annotated, Final

import msgspec

from epp_plugins.fair_shares import ROUNDING, Claim

LIMIT: Final = 32_768
"""Queues of fairness ids that are not listed, at most, but for those with something in flight: they
take 30 MiB."""
_FORGOTTEN_AT_ONCE: Final = 4
_LEARNED: Final = 0.9
"""What an older answer counts beside a newer one, for what answers cost."""

Rank = tuple[int, int, float, float, int]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


class Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Requests and tokens in flight."""

    requests: Amount | None = None
    """Requests in flight."""
    tokens: Amount | None = None
    """Tokens in flight, of prompts and answers, as estimated."""

    def or_else(self, missing: float) -> tuple[float, float]:
        """Return both, ``missing`` where nothing is said."""
        return (
            missing if self.requests is None else self.requests,
            missing if self.tokens is None else self.tokens,
        )


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a queue is owed and may have."""

    parent: str = ""
    """The queue, listed before, whose share it has a part of; none for a part of the pool."""
    deserved: Amounts = Amounts()
    """What it is owed: up to there it goes before those that have what they deserve."""
    limit: Amounts = Amounts()
    """The most that it may have in flight; what would exceed it waits."""
    over_quota_weight: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)] = 1.0
    """Its part of what is left once everybody has what they deserve."""
    priority: int = 0
    """Queues of higher priority go first with what is left."""

    def __post_init__(self) -> None:
        pairs = zip(self.deserved.or_else(0.0), self.limit.or_else(inf), strict=True)
        for owed, most in pairs:
            if owed > most:
                raise ValueError(
                    f"`deserved` is {owed:g}, more than its `limit` of {most:g}: raise the limit or"
                    " lower what is deserved"
                )


class Named(Settings, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A queue by name."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    """The fairness id whose requests it has, or any name if others name it as their parent."""


class TenantQueue(Claim):
    """One queue; what those below it have is among what it has."""

    __slots__ = ("_actual", "_enough", "_estimated", "charged", "floor", "level", "name", "owed",
                 "parent", "rank", "seen", "serial", "stamp", "surveyed", "used")  # fmt: skip

    def __init__(
        self, name: str, settings: Settings, parent: "TenantQueue | None", serial: int
    ) -> None:
        super().__init__(
            deserved=settings.deserved.or_else(0.0),
            limit=settings.limit.or_else(inf),
            weight=settings.over_quota_weight,
            priority=settings.priority,
        )
        self.name = name
        self.parent = parent
        self.serial = serial
        """Older ones go first where nothing else decides."""
        owed = settings.deserved
        self.owed = None if owed == Amounts() else (owed.requests, owed.tokens)
        """What it deserves; None if it deserves nothing."""
        self._enough = owed.or_else(inf)
        self.used = 0.0
        """Tokens that it got, as much as they count at ``stamp``."""
        self.stamp = 0.0
        self.charged = 0.0
        """What requests in flight are believed to cost, which is among what it got."""
        self._estimated = self._actual = 0.0
        self.level = -inf
        """How much it got per weight: a logarithm that time leaves as it is.

        What it got decays for all at one rate, so levels taken at different times compare."""
        self.rank: Rank | None = None
        """Its place among its siblings; None if something changed since it was found."""
        self.seen = 0
        """The survey that last found something waiting here."""
        self.surveyed = 0
        """The survey that last found something waiting below; what follows is from there."""
        self.floor = 0.0
        """The least that one of those right below it got per weight, of those that wait."""

    def path(self) -> "Iterator[TenantQueue]":
        """Yield the queue and all above it, the pool last."""
        queue: TenantQueue | None = self
        while queue is not None:
            yield queue
            queue = queue.parent

    @property
    def has_what_it_deserves(self) -> bool:
        """Whether it has all it is owed; so has one that is owed nothing."""
        if self.owed is None:
            return True
        enough, has = self._enough, self.allocated
        return has[0] >= enough[0] - ROUNDING or has[1] >= enough[1] - ROUNDING

    @property
    def has_its_share(self) -> bool:
        """Whether it has all of its fair share of something."""
        has, fair = self.allocated, self.fair
        return has[0] >= fair[0] - ROUNDING or has[1] >= fair[1] - ROUNDING

    def used_at(self, now: float, half_life: float) -> float:
        """Return the tokens that it got, as much as they count now."""
        return self.used * exp2((self.stamp - now) / half_life)

    def begin(self, tokens: float, charged: float, now: float, half_life: float) -> None:
        """Take note of a request that goes.

        Args:
            tokens: What it counts for while it is in flight.
            charged: What it is believed to cost.
            now: Seconds of the clock.
            half_life: Seconds after which what was used counts half.
        """
        self.allocated[0] += 1.0
        self.allocated[1] += tokens
        self.charged += charged
        self.charge(charged, now, half_life)

    def end(self, tokens: float, charged: float) -> None:
        """Take note of its end; ``charge`` comes next."""
        has = self.allocated
        has[0] -= 1.0
        # Sums of fractions: what is left over from rounding would stay for ever.
        has[1] = has[1] - tokens if has[0] else 0.0
        self.charged = self.charged - charged if has[0] else 0.0

    def charge(self, tokens: float, now: float, half_life: float) -> None:
        """Add to what it got; less than 0 takes off."""
        used = self.used_at(now, half_life) + tokens
        self.used = used if used > ROUNDING else 0.0
        self.stamp = now
        self.level = log2(self.used / self.weight) + now / half_life if self.used else -inf
        self.rank = None

    def got_per_weight(self, now: float, half_life: float, k: float) -> float:
        """Return what it got per weight, less ``k`` times what is still in flight of that."""
        return max(0.0, self.used_at(now, half_life) - k * self.charged) / self.weight

    def correction(self) -> float | None:
        """Return what part of their estimates its requests really cost; None if unknown."""
        return self._actual / self._estimated if self._estimated else None

    def learn(self, estimated: float, actual: float) -> None:
        """Take note of what a request cost that was estimated to cost so much."""
        self._estimated = self._estimated * _LEARNED + estimated
        self._actual = self._actual * _LEARNED + actual


class TenantQueues:
    """All queues there are."""

    def __init__(
        self,
        listed: Sequence[Named],
        default: Settings,
        *,
        half_life: float,
        limit: int = LIMIT,
    ) -> None:
        """Make the listed queues.

        Args:
            listed: Parents before their children.
            default: Of fairness ids that are not listed, each.
            half_life: Seconds after which what was used counts half.
            limit: How many of those ids are remembered.

        Raises:
            ValueError: Two have one name, or there is no such parent.
        """
        self.pool = TenantQueue("", Settings(), None, 0)
        self._half_life = half_life
        self._limit = limit
        self._default = default
        self._serial = len(listed)
        made: dict[str, TenantQueue] = {}
        for serial, settings in enumerate(listed):
            if settings.name in made:
                raise ValueError(f"`queues`: there are two named `{settings.name}`; rename one")
            parent = self._parent(settings.parent, made, f"queue `{settings.name}`")
            made[settings.name] = TenantQueue(settings.name, settings, parent, serial)
        self._default_parent = self._parent(default.parent, made, "`defaultQueue`")
        parents = {queue.parent for queue in made.values()} | {self._default_parent}
        self._weights_below = {parent: 0.0 for parent in parents if parent is not None}
        for queue in made.values():
            if queue.parent is not None:
                self._weights_below[queue.parent] += queue.weight
        self._weights_below[self._default_parent] += default.over_quota_weight
        self._listed = {name: queue for name, queue in made.items() if queue not in parents}
        self.inner = tuple(queue for queue in made.values() if queue in parents)
        """Queues that have others below them, parents before their children."""
        self._others: OrderedDict[str, TenantQueue] = OrderedDict()
        self._unknown = TenantQueue("", default, self._default_parent, 0)

    def _parent(self, name: str, made: dict[str, TenantQueue], whose: str) -> TenantQueue:
        if not name:
            return self.pool
        if name not in made:
            raise ValueError(
                f"{whose}: there is no parent `{name}` listed before it in `queues`; it knows:"
                f" {', '.join(made) or 'none'}"
            )
        return made[name]

    def __len__(self) -> int:
        """Return how many there are of fairness ids that are not listed."""
        return len(self._others)

    def peek(self, fairness_id: str) -> TenantQueue:
        """Return the queue of ``fairness_id``; if it has none, what it would be at first."""
        return self._listed.get(fairness_id) or self._others.get(fairness_id) or self._unknown

    def weight_of(self, fairness_id: str) -> float:
        """Return the weight of a queue beside those at the top: its part of that of its parent."""
        queue = self.peek(fairness_id)
        weight = queue.weight
        while (parent := queue.parent) is not None and parent is not self.pool:
            weight *= parent.weight / self._weights_below[parent]
            queue = parent
        return weight

    def queue_of(self, fairness_id: str, now: float) -> TenantQueue:
        """Return the queue of ``fairness_id``, which gets one if it has none."""
        queue = self._listed.get(fairness_id) or self._others.get(fairness_id)
        if queue is None:
            self._serial += 1
            queue = TenantQueue(fairness_id, self._default, self._default_parent, self._serial)
            self._others[fairness_id] = queue
            if len(self._others) > self._limit:
                self._forget(now)
        return queue

    def ended(self, queue: TenantQueue, now: float) -> None:
        """Take note that something of ``queue`` has ended: it is the last one to be forgotten."""
        if self._others.get(queue.name) is queue:
            self._others.move_to_end(queue.name)
            self._forget(now)

    def _forget(self, now: float) -> None:
        others = self._others
        for _ in range(min(_FORGOTTEN_AT_ONCE, len(others) - 1)):
            name = next(iter(others))
            queue = others[name]
            if queue.allocated[0]:
                others.move_to_end(name)
            elif len(others) > self._limit or queue.used_at(now, self._half_life) < 1.0:
                del others[name]
            else:
                return
