"""``slo-deadline-ordering-policy``: dispatches the request first whose first token is due first.

The client sets its objective for the time to first token, in milliseconds, in the header
``x-llm-d-slo-ttft-ms`` (old name: ``x-slo-ttft-ms``)::

    deadline = time of receipt + milliseconds / 1000

A request without the header, or with a value that is not a number above 0, comes after all requests
with a deadline. Equal deadlines are ordered by the time of receipt. A request whose deadline has
passed is not dropped; it is dispatched first.

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
    """Orders requests by the deadline of their first token."""

    type: ClassVar[str] = "slo-deadline-ordering-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def key(self, queued: QueuedRequest) -> tuple[float, float]:
        received = queued.received_at
        slo_ms = ttft_slo_ms(queued.request.headers)
        return (inf if slo_ms is None else received + slo_ms / 1000.0, received)
