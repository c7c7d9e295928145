"""``fcfs-ordering-policy``: first come, first served; the request that has waited longest is first.

The requests of a flow are dispatched in the order in which they were enqueued. This is the default
of a band without ``orderingPolicyRef``; it needs no entry in ``plugins``.

Example::

    plugins:
      - type: fcfs-ordering-policy
    flowControl:
      defaultPriorityBand: {orderingPolicyRef: fcfs-ordering-policy}
"""

from typing import ClassVar

import msgspec

from epp.flow_control.plugins import OrderingPolicy, QueuedRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``fcfs-ordering-policy`` has no parameters."""


class FcfsOrderingPolicy(OrderingPolicy):
    """Orders requests by the time of enqueueing."""

    type: ClassVar[str] = "fcfs-ordering-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def key(self, queued: QueuedRequest) -> float:
        return queued.enqueued_at
