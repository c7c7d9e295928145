"""``edf-ordering-policy``: the request whose time to wait ends first goes first.

::

    deadline = when it began to wait + how long it may wait

A request that may wait for ever comes after all others. Equal deadlines go by when they began to
wait. Where all requests of a band may wait equally long this is the order of
``fcfs-ordering-policy``; it differs where clients say how long they would wait.

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
    """Orders requests by the end of the time that they may wait."""

    type: ClassVar[str] = "edf-ordering-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def key(self, queued: QueuedRequest) -> tuple[float, float]:
        since, ttl = queued.enqueued_at, queued.ttl_seconds
        return (since + ttl if ttl is not None and ttl > 0 else inf, since)
