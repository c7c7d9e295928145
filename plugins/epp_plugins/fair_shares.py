"""Fair shares: divides resources among a tree of claims, level by level.

Of each resource, every claim first gets what it deserves, as far as it is requested, even if that
exceeds the total. The rest goes to the claims of the highest priority until their requests are
satisfied, then to the next priority. Within a priority it is divided by weight, in rounds, because
some claims are satisfied earlier than others. Past use reduces the weight: with ``w`` the claim's
fraction of the weights in this round, ``u`` its past use and ``k`` the influence of past use::

    weight = max(0, w + k * (w - u))

The children of a claim divide its share. Each resource is divided separately. The dominant share of
a claim is its largest allocation of a resource in proportion to its share of that resource.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Final

ROUNDING: Final = 1e-9
"""Tolerance for rounding errors: smaller amounts count as 0."""
NO_SHARE: Final = 1000.0
"""Factor for an allocation of a resource of which the claim has no share."""

_priority = attrgetter("priority")


class Claim:
    """Allocation, request and limits of one claimant; each list has one number per resource.

    The amounts include those of the children.
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
        """Create a claim without allocation and request.

        Args:
            deserved: Guaranteed amounts; 0.0 for none.
            limit: Maximum amounts, ``inf`` for no limit.
            weight: Weight for the remainder after the deserved amounts; 0.0 for no part of it.
            priority: Higher priorities get the remainder first.
        """
        count = len(deserved)
        self.deserved = list(deserved)
        self.limit = [inf] * count if limit is None else list(limit)
        self.weight = weight
        self.priority = priority
        self.allocated = [0.0] * count
        self.requested = [0.0] * count
        """Allocated and waiting amounts."""
        self.usage = [0.0] * count
        """Recent use as a fraction of the total."""
        self.fair = [0.0] * count
        """Fair shares, written by :func:`divide`."""
        self.below: list[Claim] = []
        """Children, which divide its share."""

    def dominant_share(self) -> float:
        """Return the largest ratio of allocation to fair share."""
        return max(map(part_of, self.allocated, self.fair))


def part_of(amount: float, share: float) -> float:
    """Return the ratio of ``amount`` to ``share``."""
    return amount / share if share > ROUNDING else amount * NO_SHARE


def divide(claims: Sequence[Claim], totals: Sequence[float], *, k: float = 0.0) -> None:
    """Compute the fair shares of ``claims`` and of their descendants, and write them to ``fair``.

    Args:
        claims: Siblings that divide the totals.
        totals: Available amount of each resource.
        k: Influence of past use; 0.0 for none.
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
    """Divide ``left`` by weight; return the amount that no claim requests."""
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
    """Return each claim's fraction in this round."""
    total = sum(claim.weight for claim in claims)
    parts = [claim.weight / total for claim in claims]
    if not k:
        return parts
    usages = [claim.usage[resource] for claim in claims]
    weights = [max(0.0, w + k * (w - used)) for w, used in zip(parts, usages, strict=True)]
    total = sum(weights)
    # If all have used more than their fraction, past use does not distinguish them.
    return [weight / total for weight in weights] if total else parts
