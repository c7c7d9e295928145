"""``edf-ordering-policy``: earliest deadline first, by the time to live of queued requests.

::

    deadline = time of enqueueing + time to live (TTL)

Requests without a TTL come last. Requests with equal deadlines are ordered by the time of
enqueueing. If all requests of a band have the same TTL, the order is that of
``fcfs-ordering-policy``; it differs if clients set a TTL.

Example::

    plugins:
      - type: edf-ordering-policy
    flowControl:
      defaultPriorityBand: {orderingPolicyRef: edf-ordering-policy}
"""

from math import inf
from typing import ClassVar

import msgspec

from epp.flow_control.plugins import OrderingPolicy, QueuedRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``edf-ordering-policy`` has no parameters."""


class EdfOrderingPolicy(OrderingPolicy):
    """Orders requests by the time at which their TTL expires."""

    type: ClassVar[str] = "edf-ordering-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def key(self, queued: QueuedRequest) -> tuple[float, float]:
        since, ttl = queued.enqueued_at, queued.ttl_seconds
        return (since + ttl if ttl is not None and ttl > 0 else inf, since)
