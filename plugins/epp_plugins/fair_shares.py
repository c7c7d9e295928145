"""Fair shares: divides resources among those who claim them, level by level.

Of each resource everybody first gets what they deserve, as far as they want it, even if that is
more than there is. The rest goes to the claims of the highest priority until these want no more,
then to the next ones; within one priority by weight, in rounds, as some are satisfied before
others. What was used before counts against the weight: with ``w`` a claim's part of the weights of
those who want more, ``u`` its past use and ``k`` how much that matters::

    weight = max(0, w + k * (w - u))

The claims below one divide its share. Resources are divided one by one; what a claim holds of them
all is told by its dominant share, the largest part that it has of any of its shares.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Final

ROUNDING: Final = 1e-9
"""Amounts are fractions that are added and taken off again: less than this is nothing."""
NO_SHARE: Final = 1000.0
"""How much worse it is to hold what one has no share of."""

_priority = attrgetter("priority")


class Claim:
    """What somebody has, wants and may have; each list has one number per resource.

    What those below it have and want is among it.
    """

    __slots__ = ("allocated", "below", "deserved", "fair", "limit", "priority", "requested",
                 "usage", "weight")  # fmt: skip

    def __init__(
        self,
        *,
        deserved: Sequence[float],
        limit: Sequence[float] | None = None,
        weight: float = 1.0,
        priority: int = 0,
    ) -> None:
        """Make a claim that has and wants nothing yet.

        Args:
            deserved: What it is owed; 0.0 for nothing.
            limit: The most it may have, ``inf`` for no limit.
            weight: Its part of what is left once everybody has what they deserve; 0.0 for none.
            priority: Higher ones get of what is left first.
        """
        count = len(deserved)
        self.deserved = list(deserved)
        self.limit = [inf] * count if limit is None else list(limit)
        self.weight = weight
        self.priority = priority
        self.allocated = [0.0] * count
        self.requested = [0.0] * count
        """What it has and what waits."""
        self.usage = [0.0] * count
        """What it had of late, as a part of all there is."""
        self.fair = [0.0] * count
        self.below: list[Claim] = []
        """Those that divide its share."""

    def dominant_share(self) -> float:
        """Return the largest part that it has of any of its shares."""
        return max(map(part_of, self.allocated, self.fair))


def part_of(amount: float, share: float) -> float:
    """Return which part of ``share`` the amount is."""
    return amount / share if share > ROUNDING else amount * NO_SHARE


def divide(claims: Sequence[Claim], totals: Sequence[float], *, k: float = 0.0) -> None:
    """Write the fair shares of ``claims``, which are siblings, and of all below them.

    Args:
        claims: Those who divide.
        totals: How much there is of each resource.
        k: How much past use matters; 0.0 for not at all.
    """
    for resource, total in enumerate(totals):
        _divide(claims, resource, total, k)


def _divide(claims: Sequence[Claim], resource: int, total: float, k: float) -> None:
    left = total
    for claim in claims:
        wanted = min(claim.requested[resource], claim.limit[resource])
        claim.fair[resource] = min(claim.deserved[resource], wanted)
        left -= claim.fair[resource]
    for _, group in groupby(sorted(claims, key=_priority, reverse=True), key=_priority):
        left = _hand_out(group, resource, left, k)
    for claim in claims:
        if claim.below:
            _divide(claim.below, resource, claim.fair[resource], k)


def _hand_out(claims: Iterable[Claim], resource: int, left: float, k: float) -> float:
    """Hand ``left`` out by weight; return what nobody wants."""
    wanting = [
        (claim, min(claim.requested[resource], claim.limit[resource]) - claim.fair[resource])
        for claim in claims
        if claim.weight > 0
    ]
    while left > ROUNDING and wanting:
        handed = 0.0
        short: list[tuple[Claim, float]] = []
        parts = _parts([claim for claim, _ in wanting], resource, k)
        for (claim, lacks), part in zip(wanting, parts, strict=True):
            given = min(left * part, lacks)
            claim.fair[resource] += given
            handed += given
            if lacks - given > ROUNDING:
                short.append((claim, lacks - given))
        if not handed and len(short) == len(wanting):
            break
        left -= handed
        wanting = short
    return max(0.0, left)


def _parts(claims: Sequence[Claim], resource: int, k: float) -> list[float]:
    """Return what each gets of one unit in this round."""
    total = sum(claim.weight for claim in claims)
    parts = [claim.weight / total for claim in claims]
    if not k:
        return parts
    usages = [claim.usage[resource] for claim in claims]
    weights = [max(0.0, w + k * (w - used)) for w, used in zip(parts, usages, strict=True)]
    total = sum(weights)
    # All of them used more than their part: then past use tells nobody from the others.
    return [weight / total for weight in weights] if total else parts
