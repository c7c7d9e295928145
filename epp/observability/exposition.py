"""The page of all metrics, in one of the two formats of Prometheus."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.registry import Collector


class Exposition:
    """Renders a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def render(self, *, openmetrics: bool, names: Sequence[str]) -> Iterator[bytes]:
        """Yield the page in pieces.

        Args:
            openmetrics: The OpenMetrics format instead of the text format.
            names: Of the samples that are asked for; none for all.
        """
        registry = self._registry.restricted_registry(names) if names else self._registry
        render: Callable[[Collector], bytes] = (
            openmetrics_format.generate_latest if openmetrics else generate_latest
        )
        yield render(registry)
