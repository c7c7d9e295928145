"""``example-fairness-policy``: serves the flow first that was served longest ago.

Example::

    featureGates: [flowControl]
    plugins:
      - type: file:example_fairness_policy.py:ExampleFairnessPolicy
        name: mine
    flowControl:
      defaultPriorityBand: {fairnessPolicyRef: mine}
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.flow_control.plugins import FairnessPolicy, Flow, QueuedRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-fairness-policy``: none."""


class ExampleFairnessPolicy(FairnessPolicy):
    """Orders flows by the time of their last dispatch."""

    type: ClassVar[str] = "example-fairness-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def keys(self, flows: Sequence[Flow], now: float) -> list[float]:
        # ``flow.fairness`` is None at first, also after a reload.
        return [-1.0 if flow.fairness is None else flow.fairness for flow in flows]

    def dispatched(self, flow: Flow, queued: QueuedRequest, now: float) -> None:
        flow.fairness = now
