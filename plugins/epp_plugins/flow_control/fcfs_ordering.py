"""``fcfs-ordering-policy``: the request that has waited longest goes first.

The order of one flow is that in which its requests began to wait. This is what bands do that name
no ``orderingPolicyRef``; it needs no entry in ``plugins``.

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
    """Orders requests by when they began to wait."""

    type: ClassVar[str] = "fcfs-ordering-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def key(self, queued: QueuedRequest) -> float:
        return queued.enqueued_at
