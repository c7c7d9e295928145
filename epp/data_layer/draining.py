"""Draining: endpoints that get no new requests while those in flight there continue.

An endpoint drains while it has the drain label, and while a command of an operator says so. The
commands are kept by endpoint object: they survive a change of labels, and end when the endpoint
leaves the pool. The store leaves draining endpoints out of ``EndpointStore.serving``.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from epp.scheduling import Endpoint

DRAIN_LABEL: Final = ("llm-d.ai/drain", "true")
"""Name and value of the label of endpoints that get no new requests."""

_log = structlog.get_logger(__name__)


class DrainMarks:
    """Says which endpoints drain, and why.

    Args:
        label: Name and value of the drain label; None if there is no such label.
    """

    def __init__(self, label: tuple[str, str] | None = None) -> None:
        self.commands: dict[Endpoint, float] = {}
        """Endpoints that a command drains, and when that ends, in monotonic seconds; inf for no
        end. A change takes effect with ``EndpointStore.update_serving``."""
        self._label = label
        self._label_text = "=".join(label or ())

    def reason(self, endpoint: Endpoint) -> str:
        """Return why an endpoint drains; "" if it does not."""
        reasons = []
        if self._has_label(endpoint):
            reasons.append(f"label {self._label_text}")
        if endpoint in self.commands:
            reasons.append("epp drain")
        return " and ".join(reasons)

    def note(self, endpoint: Endpoint) -> bool:
        """Update ``endpoint.is_draining``, and log a change; return whether it has changed."""
        reason = self.reason(endpoint)
        if bool(reason) is endpoint.is_draining:
            return False
        endpoint.is_draining = bool(reason)
        event = "endpoint is draining" if reason else "endpoint takes new requests again"
        _log.info(
            event,
            endpoint=endpoint.name,
            address=endpoint.address,
            reason=reason,
            in_flight=endpoint.load.in_flight,
        )
        return True

    def remedy(self, endpoints: Sequence[Endpoint]) -> str:
        """Return what ends the draining of all ``endpoints``."""
        ways = []
        if any(self._has_label(each) for each in endpoints):
            ways.append(f"remove the label {self._label_text}")
        if any(each in self.commands for each in endpoints):
            ways.append("run `epp drain --undo ENDPOINT`")
        return " or ".join(ways)

    def _has_label(self, endpoint: Endpoint) -> bool:
        return self._label is not None and endpoint.labels.get(self._label[0]) == self._label[1]
