"""``slo-deadline-ordering-policy``: the request whose first token is due first goes first.

The client says in the header ``x-llm-d-slo-ttft-ms``, or ``x-slo-ttft-ms`` as of old, how many
milliseconds its first token may take::

    deadline = when the request was received + milliseconds / 1000

A request without the header, or with a value that is no number above 0, comes after all that have
one. Equal deadlines go by when the requests were received. A deadline that has passed is still the
most urgent: nothing is given up here.

Reads:  the header ``x-llm-d-slo-ttft-ms``.
Example::

    plugins:
      - type: slo-deadline-ordering-policy
    flowControl:
      defaultPriorityBand: {orderingPolicyRef: slo-deadline-ordering-policy}
"""

from math import inf
from typing import ClassVar

import msgspec

from epp.flow_control.plugins import OrderingPolicy, QueuedRequest
from epp_plugins.slo_headers import ttft_slo_ms


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``slo-deadline-ordering-policy`` has no parameters."""


class SloDeadlineOrderingPolicy(OrderingPolicy):
    """Orders requests by when their first token is due."""

    type: ClassVar[str] = "slo-deadline-ordering-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def key(self, queued: QueuedRequest) -> tuple[float, float]:
        received = queued.received_at
        slo_ms = ttft_slo_ms(queued.request.headers)
        return (inf if slo_ms is None else received + slo_ms / 1000.0, received)
