"""Chooses the best pair of a prefill and a decode endpoint, instead of the best of each.

Only near-best endpoints are considered: those with at least 0.9 of their profile's best total, so
that neither stage loses more than a tenth. The value of a pair is::

    decode / best decode + prefill / best prefill + closeness

where closeness is 1 for the same host, 0.2 for the same rack, 0.05 for the same zone, 0.02 for the
same region, else 0, as in ``topology-affinity-scorer``. Of pairs with equal values the pickers'
choice comes first, then the pair with the fewest requests. An endpoint is not paired with itself.

Prefill endpoints are grouped by place; only the best of each group can be in the best pair. The
best 64 decode endpoints are tried, each with its (at most five) groups, until no remaining one can
be better. So the cost grows with the number of endpoints, not of pairs.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from epp.scheduling import AttributeKey, Endpoint, ProfileResult
from epp_plugins.pickers.columns import columns_of
from epp_plugins.state_keys import Topology
from epp_plugins.topology import CLOSENESS_SCORES, Closeness

NEAR_BEST: Final = 0.9
MAX_DECODE_CANDIDATES: Final = 64
_BONUSES: Final = tuple(CLOSENESS_SCORES[each] for each in sorted(Closeness, reverse=True))
"""Bonuses from the same host to nothing in common."""
_PER_PLACE: Final = 2
"""Candidates per place; the second is used if the first is the decode endpoint itself."""
_NOWHERE: Final = Topology()


class _Candidate(NamedTuple):
    """A near-best endpoint; sorts by its first four fields, as ``order`` is unique."""

    share: float
    """Fraction of the profile's best total."""
    is_picked: bool
    idleness: float
    """Number of its requests, negated."""
    order: int
    """Position in the profile's list, negated."""
    endpoint: Endpoint
    places: tuple[str, ...]
    """Host, rack, zone, region and "everywhere"; "" if unknown."""


def with_best_pair(
    decode: ProfileResult, prefill: ProfileResult, key: AttributeKey[Topology]
) -> tuple[ProfileResult, ProfileResult]:
    """Return both results with the best pair first; unchanged if there is no pair."""
    prefills = _near_best(prefill, key)
    groups = _by_place(prefills)
    best: tuple[float, int, float] = (-1.0, 0, 0.0)
    pair: tuple[_Candidate, _Candidate] | None = None
    for one in _near_best(decode, key)[:MAX_DECODE_CANDIDATES]:
        if best[0] > one.share + prefills[0].share + _BONUSES[0]:
            break
        for bonus, group, place in zip(_BONUSES, groups, one.places, strict=True):
            for other in group.get(place, ()):
                if other.endpoint is one.endpoint:
                    continue
                # If the pair is closer than this group implies, a narrower group has its value.
                value = (
                    one.share + other.share + bonus,
                    one.is_picked + other.is_picked,
                    one.idleness + other.idleness,
                )
                if value > best:
                    best, pair = value, (one, other)
                break
    if pair is None:
        return decode, prefill
    return _led_by(decode, pair[0]), _led_by(prefill, pair[1])


def _near_best(result: ProfileResult, key: AttributeKey[Topology]) -> list[_Candidate]:
    """Return the near-best candidates, best first."""
    endpoints, scores = columns_of(result.scored)
    best = max(scores)
    least = NEAR_BEST * best
    picked = result.endpoints[0].endpoint
    candidates = []
    for position, score in enumerate(scores):
        if score >= least:
            endpoint = endpoints[position]
            load = endpoint.load
            at = endpoint.attributes.get(key) or _NOWHERE
            candidates.append(
                _Candidate(
                    score / best if best else 1.0,
                    endpoint is picked,
                    -(load.waiting_requests + load.running_requests),
                    -position,
                    endpoint,
                    (at.host, at.rack, at.zone, at.region, "everywhere"),
                )
            )
    candidates.sort(reverse=True)
    return candidates


def _by_place(candidates: list[_Candidate]) -> tuple[dict[str, list[_Candidate]], ...]:
    """Return the best candidates of each place; by host, by rack and so on."""
    groups: tuple[dict[str, list[_Candidate]], ...] = tuple({} for _ in _BONUSES)
    for candidate in candidates:
        for by_name, name in zip(groups, candidate.places, strict=True):
            if name:
                group = by_name.setdefault(name, [])
                if len(group) < _PER_PLACE:
                    group.append(candidate)
    return groups


def _led_by(result: ProfileResult, first: _Candidate) -> ProfileResult:
    """Return ``result`` with ``first`` as the first endpoint and an unchanged number of them."""
    others = [each for each in result.endpoints if each.endpoint is not first.endpoint]
    endpoints = [result.scored[-first.order], *others][: len(result.endpoints)]
    return replace(result, endpoints=endpoints)
