"""Queues of tenants, with their requests and tokens in flight and their recent use.

The queues of the configuration form a tree. Every other fairness id gets a queue with its first
request. Such a queue is removed when it has nothing in flight and its past use has decayed; if
there are too many, the ones unused for longest are removed first.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import exp2, inf, log2
from typing import Annotated, Final

import msgspec

from epp_plugins.fair_shares import ROUNDING, Claim

LIMIT: Final = 32_768
"""Maximum queues of unlisted fairness ids, not counting those with requests in flight: 30 MiB."""
_FORGOTTEN_AT_ONCE: Final = 4
_LEARNED: Final = 0.9
"""Weight of an older response relative to the next one, for the correction of estimates."""

Rank = tuple[int, int, float, float, int]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


class Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Requests and tokens in flight."""

    requests: Amount | None = None
    """Requests in flight."""
    tokens: Amount | None = None
    """Estimated tokens in flight, of prompts and responses."""

    def or_else(self, missing: float) -> tuple[float, float]:
        """Return (requests, tokens), with ``missing`` for a value that is not set."""
        return (
            missing if self.requests is None else self.requests,
            missing if self.tokens is None else self.tokens,
        )


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Settings of a queue."""

    parent: str = ""
    """Queue, listed earlier, whose resources this one shares; by default the pool."""
    deserved: Amounts = Amounts()
    """Guaranteed amount in flight: below it, the queue comes before queues that have theirs."""
    limit: Amounts = Amounts()
    """Maximum amount in flight; requests that would exceed it wait."""
    over_quota_weight: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)] = 1.0
    """Weight for the capacity that remains when all queues have what they deserve."""
    priority: int = 0
    """Queues of higher priority come first for the remaining capacity."""

    def __post_init__(self) -> None:
        pairs = zip(self.deserved.or_else(0.0), self.limit.or_else(inf), strict=True)
        for owed, most in pairs:
            if owed > most:
                raise ValueError(
                    f"`deserved` is {owed:g}, more than its `limit` of {most:g}: raise `limit` or"
                    " lower `deserved`"
                )


class Named(Settings, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A queue with a name."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    """Fairness id of the requests in this queue; any name for a queue that is a parent."""


class TenantQueue(Claim):
    """One queue; its amounts include those of its descendants."""

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
        """Tie-breaker: older queues come first."""
        owed = settings.deserved
        self.owed = None if owed == Amounts() else (owed.requests, owed.tokens)
        """``deserved`` (requests, tokens); None if neither is set."""
        self._enough = owed.or_else(inf)
        self.used = 0.0
        """Tokens received, decayed as of ``stamp``."""
        self.stamp = 0.0
        self.charged = 0.0
        """Estimated cost of the requests in flight, which is part of ``used``."""
        self._estimated = self._actual = 0.0
        self.level = -inf
        """Logarithm of tokens received per weight, independent of time.

        All queues decay at the same rate, so levels from different times are comparable."""
        self.rank: Rank | None = None
        """Cached sort key among its siblings; None if out of date."""
        self.seen = 0
        """Number of the last survey that found requests waiting here."""
        self.surveyed = 0
        """Number of the last survey that found requests waiting below; ``floor`` is from it."""
        self.floor = 0.0
        """Least tokens received per weight among the children with waiting requests."""

    def path(self) -> "Iterator[TenantQueue]":
        """Yield the queue and its ancestors, the pool last."""
        queue: TenantQueue | None = self
        while queue is not None:
            yield queue
            queue = queue.parent

    @property
    def has_what_it_deserves(self) -> bool:
        """Whether it has the amount that it deserves; True if nothing is guaranteed."""
        if self.owed is None:
            return True
        enough, has = self._enough, self.allocated
        return has[0] >= enough[0] - ROUNDING or has[1] >= enough[1] - ROUNDING

    @property
    def has_its_share(self) -> bool:
        """Whether it has its whole fair share of requests or of tokens."""
        has, fair = self.allocated, self.fair
        return has[0] >= fair[0] - ROUNDING or has[1] >= fair[1] - ROUNDING

    def used_at(self, now: float, half_life: float) -> float:
        """Return the tokens received, decayed as of ``now``."""
        return self.used * exp2((self.stamp - now) / half_life)

    def begin(self, tokens: float, charged: float, now: float, half_life: float) -> None:
        """Record the dispatch of a request.

        Args:
            tokens: Tokens as which it counts while it is in flight.
            charged: Its estimated cost in tokens.
            now: Current time in seconds.
            half_life: Half-life of past use in seconds.
        """
        self.allocated[0] += 1.0
        self.allocated[1] += tokens
        self.charged += charged
        self.charge(charged, now, half_life)

    def end(self, tokens: float, charged: float) -> None:
        """Record the end of a request; call :meth:`charge` afterwards."""
        has = self.allocated
        has[0] -= 1.0
        # Sums of fractions: rounding errors would accumulate.
        has[1] = has[1] - tokens if has[0] else 0.0
        self.charged = self.charged - charged if has[0] else 0.0

    def share(self, requests: int, tokens: float, charged: float) -> None:
        """Apply a change of another replica's requests; call :meth:`charge` afterwards.

        Args:
            requests: Change of the requests.
            tokens: Change of the tokens in flight.
            charged: Change of the estimated cost in tokens.
        """
        has = self.allocated
        has[0] = max(0.0, has[0] + requests)
        has[1] = max(0.0, has[1] + tokens) if has[0] else 0.0
        self.charged = max(0.0, self.charged + charged) if has[0] else 0.0

    def charge(self, tokens: float, now: float, half_life: float) -> None:
        """Add ``tokens``, which may be negative, to the tokens received."""
        used = self.used_at(now, half_life) + tokens
        self.used = used if used > ROUNDING else 0.0
        self.stamp = now
        self.level = log2(self.used / self.weight) + now / half_life if self.used else -inf
        self.rank = None

    def got_per_weight(self, now: float, half_life: float, k: float) -> float:
        """Return the tokens received per weight, less ``k`` times those in flight."""
        return max(0.0, self.used_at(now, half_life) - k * self.charged) / self.weight

    def correction(self) -> float | None:
        """Return the ratio of actual to estimated cost; None if unknown."""
        return self._actual / self._estimated if self._estimated else None

    def learn(self, estimated: float, actual: float) -> None:
        """Record the estimated and the actual cost of a request."""
        self._estimated = self._estimated * _LEARNED + estimated
        self._actual = self._actual * _LEARNED + actual


class TenantQueues:
    """All queues of a policy."""

    def __init__(
        self,
        listed: Sequence[Named],
        default: Settings,
        *,
        half_life: float,
        limit: int = LIMIT,
    ) -> None:
        """Create the listed queues.

        Args:
            listed: Queues by name, parents before their children.
            default: Settings of each fairness id that is not listed.
            half_life: Half-life of past use in seconds.
            limit: Maximum queues of unlisted fairness ids.

        Raises:
            ValueError: Two queues have the same name, or a parent is not listed earlier.
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
        """Queues with children, parents before their children."""
        self._others: OrderedDict[str, TenantQueue] = OrderedDict()
        self._unknown = TenantQueue("", default, self._default_parent, 0)

    def _parent(self, name: str, made: dict[str, TenantQueue], whose: str) -> TenantQueue:
        if not name:
            return self.pool
        if name not in made:
            raise ValueError(
                f"{whose}: no parent `{name}` is listed before it in `queues`; listed:"
                f" {', '.join(made) or 'none'}"
            )
        return made[name]

    def named(self) -> Iterator[TenantQueue]:
        """Yield the queues that are listed and have no children."""
        yield from self._listed.values()

    def __len__(self) -> int:
        """Return the number of queues of unlisted fairness ids."""
        return len(self._others)

    def peek(self, fairness_id: str) -> TenantQueue:
        """Return the queue of ``fairness_id``, or a new queue's values without creating it."""
        return self._listed.get(fairness_id) or self._others.get(fairness_id) or self._unknown

    def weight_of(self, fairness_id: str) -> float:
        """Return the weight of a queue within the whole pool."""
        queue = self.peek(fairness_id)
        weight = queue.weight
        while (parent := queue.parent) is not None and parent is not self.pool:
            weight *= parent.weight / self._weights_below[parent]
            queue = parent
        return weight

    def queue_of(self, fairness_id: str, now: float) -> TenantQueue:
        """Return the queue of ``fairness_id``; create it if needed."""
        queue = self._listed.get(fairness_id) or self._others.get(fairness_id)
        if queue is None:
            self._serial += 1
            queue = TenantQueue(fairness_id, self._default, self._default_parent, self._serial)
            self._others[fairness_id] = queue
            if len(self._others) > self._limit:
                self._forget(now)
        return queue

    def ended(self, queue: TenantQueue, now: float) -> None:
        """Record that a queue's last request in flight ended; it is now removed last."""
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
