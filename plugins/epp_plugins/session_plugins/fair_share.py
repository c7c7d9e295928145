"""Divides an amount among queues, level by level."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from epp.flow_control.sessions import Queue

_NOTHING = 1e-9
"""Amounts are fractions: less than this is left over from rounding."""


@dataclass(slots=True)
class Share:
    """What a queue has, wants and may have, the queues below it included."""

    allocated: float = 0.0
    allocated_non_preemptible: float = 0.0
    requested: float = 0.0
    """What it has and what waits."""
    fair: float = 0.0


def divide(queues: Iterable[Queue], shares: Mapping[Queue, Share], total: float) -> None:
    """Write the fair share of ``queues``, which are siblings, and of all below them.

    Everybody first gets what they deserve, as far as they want it, even if that is more than there
    is. The rest goes to the queues of the highest priority by weight until these want no more, then
    to the next; a queue's children divide its share.
    """
    siblings = list(queues)
    wanted = {queue: _requestable(queue, shares[queue]) for queue in siblings}
    for queue in siblings:
        shares[queue].fair = min(queue.deserved or 0.0, wanted[queue])
    left = total - sum(shares[queue].fair for queue in siblings)
    by_priority = sorted(siblings, key=lambda queue: -queue.priority)
    for _, group in groupby(by_priority, key=lambda queue: queue.priority):
        left = _hand_out(list(group), shares, wanted, left)
    for queue in siblings:
        divide(queue.children, shares, shares[queue].fair)


def _requestable(queue: Queue, share: Share) -> float:
    return share.requested if queue.limit is None else min(share.requested, queue.limit)


def _hand_out(
    queues: Sequence[Queue],
    shares: Mapping[Queue, Share],
    wanted: Mapping[Queue, float],
    left: float,
) -> float:
    """Hand ``left`` out by weight; return what nobody wants."""

    def lacks(queue: Queue) -> float:
        return wanted[queue] - shares[queue].fair

    while left > _NOTHING:
        open_queues = [
            queue for queue in queues if lacks(queue) > _NOTHING and queue.over_quota_weight > 0
        ]
        weights = sum(queue.over_quota_weight for queue in open_queues)
        if not weights:
            break
        parts = {
            queue: min(left * queue.over_quota_weight / weights, lacks(queue))
            for queue in open_queues
        }
        for queue, part in parts.items():
            shares[queue].fair += part
        left -= sum(parts.values())
    return max(0.0, left)
