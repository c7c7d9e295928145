"""``priority-then-time-eviction-order-policy``: the lowest priority goes first, then the newest.

What was dispatched last has got least done. This is the order where ``flowControl.enableEviction``
is on and no ``orderPluginRef`` names another; it needs no entry in ``plugins``.

Example::

    plugins:
      - type: priority-then-time-eviction-order-policy
    flowControl: {enableEviction: true}
    extensions:
      flowControl:
        eviction: {orderPluginRef: priority-then-time-eviction-order-policy}
"""

from typing import ClassVar

import msgspec

from epp.flow_control.plugins import EvictionOrder, InFlight


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``priority-then-time-eviction-order-policy`` has no parameters."""


class PriorityThenTimeEvictionOrder(EvictionOrder):
    """Orders requests by priority, then by when they were dispatched, the newest first."""

    type: ClassVar[str] = "priority-then-time-eviction-order-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def key(self, victim: InFlight) -> tuple[int, float]:
        return victim.request.priority, -victim.dispatched_at
