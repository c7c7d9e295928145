"""``example-ordering-policy``: dispatches short requests before long ones.

::

    length = bytes of the body // bytesPerStep    # equal lengths: by arrival

Example::

    featureGates: [flowControl]
    plugins:
      - type: file:example_ordering_policy.py:ExampleOrderingPolicy
        name: mine
        parameters: {bytesPerStep: 4096}
    flowControl:
      defaultPriorityBand: {orderingPolicyRef: mine}
"""

from typing import Annotated, ClassVar

import msgspec

from epp.flow_control.plugins import OrderingPolicy, QueuedRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-ordering-policy``."""

    bytes_per_step: Annotated[int, msgspec.Meta(ge=1)] = 4096
    """Bodies whose lengths differ by less than this may count as equally long."""


class ExampleOrderingPolicy(OrderingPolicy):
    """Orders requests by the length of their bodies."""

    type: ClassVar[str] = "example-ordering-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._step = params.bytes_per_step

    def key(self, queued: QueuedRequest) -> int:
        return queued.size_bytes // self._step
