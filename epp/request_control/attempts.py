"""How often the scheduler was asked, and what for: ``scheduler_attempts_total``."""

from collections.abc import Callable
from typing import Final

from epp.observability import Metrics
from epp.scheduling import Endpoint

_MOST_BOUND: Final = 16_384
"""Endpoints and models multiply, and endpoints come and go: beyond this all are bound anew."""


class Attempts:
    """Counts scheduling attempts; a counter is bound once per endpoint and model."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._bound: dict[tuple[str, str, str], Callable[[], None]] = {}

    def succeeded(self, target_model: str, endpoint: Endpoint) -> None:
        """Count a choice of ``endpoint``."""
        # An address may pass to another pod, whose name is a label of its own.
        key = (endpoint.name, endpoint.address, target_model)
        count = self._bound.get(key)
        if count is None:
            namespace, _, name = endpoint.name.rpartition("/")
            port = endpoint.address.rpartition(":")[2]
            capped = self._metrics.capped_model(target_model)
            count = self._metrics.scheduler_attempts.labels(
                "success", capped, name, namespace, port
            ).inc
            if capped == target_model:
                if len(self._bound) >= _MOST_BOUND:
                    self._bound.clear()
                self._bound[key] = count
        count()

    def failed(self, target_model: str) -> None:
        """Count an attempt that chose nothing."""
        capped = self._metrics.capped_model(target_model)
        self._metrics.scheduler_attempts.labels("failure", capped, "", "", "").inc()
