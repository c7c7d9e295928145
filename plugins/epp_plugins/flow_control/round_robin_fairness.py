"""``round-robin-fairness-policy``: flows take turns, one request each.

A flow joins the end of the rotation when its first request is queued, and again after each of its
requests is dispatched. So the head of each flow waits for at most one request of every other flow,
and new flows queue up behind existing ones, however many fairness ids a client invents. A flow
whose next request finds no endpoint keeps its place.

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
    """Orders flows by their place in the rotation."""

    type: ClassVar[str] = "round-robin-fairness-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._places = count(1)

    def keys(self, flows: Sequence[Flow], now: float) -> list[int]:
        for flow in flows:
            if flow.fairness is None:  # queued before a reload introduced this policy
                self.activated(flow, now)
        return [flow.fairness for flow in flows]

    def activated(self, flow: Flow, now: float) -> None:
        flow.fairness = next(self._places)

    def dispatched(self, flow: Flow, queued: QueuedRequest, now: float) -> None:
        flow.fairness = next(self._places)
