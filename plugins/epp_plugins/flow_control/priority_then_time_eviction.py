"""``priority-then-time-eviction-order-policy``: evicts the lowest priority first, then the newest.

The request that was dispatched last has made the least progress. This is the default with
``flowControl.enableEviction`` and without ``orderPluginRef``; it needs no entry in ``plugins``.

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
    """Orders requests by priority, then by the time of dispatch, newest first."""

    type: ClassVar[str] = "priority-then-time-eviction-order-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def key(self, victim: InFlight) -> tuple[int, float]:
        return victim.request.priority, -victim.dispatched_at
