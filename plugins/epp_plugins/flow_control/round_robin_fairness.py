"""``round-robin-fairness-policy``: flows take turns, one request each.

A flow takes its place at the end of the line when something begins to wait in it, and again after
each of its requests that goes. So each request in front waits for at most one request of every
other flow, and flows that come later, under however many new names, queue up behind those that are
there. A flow whose next request finds no endpoint keeps its place.

Example::

    plugins:
      - type: round-robin-fairness-policy
    flowControl:
      defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}
"""

from collections.abc import Sequence
from itertools import count
from typing import ClassVar

import msgspec

from epp.flow_control.plugins import FairnessPolicy, Flow, QueuedRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``round-robin-fairness-policy`` has no parameters."""


class RoundRobinFairnessPolicy(FairnessPolicy):
    """Lets flows take turns."""

    type: ClassVar[str] = "round-robin-fairness-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._places = count(1)

    def keys(self, flows: Sequence[Flow], now: float) -> list[int]:
        for flow in flows:
            if flow.fairness is None:  # it waited before this policy came, by a reload
                self.activated(flow, now)
        return [flow.fairness for flow in flows]

    def activated(self, flow: Flow, now: float) -> None:
        flow.fairness = next(self._places)

    def dispatched(self, flow: Flow, queued: QueuedRequest, now: float) -> None:
        flow.fairness = next(self._places)
