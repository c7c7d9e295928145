"""Render the metrics page in pieces.

prometheus_client creates an object per line (7 us) and returns the page as one string. Here the
families of :mod:`.metric_families` write their own lines, and everything else goes through
prometheus_client, one metric at a time. The result is identical, byte for byte.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.registry import Collector

from epp.observability.deprecated_metrics import Mirror, MirroredCollector, mirror_of
from epp.observability.metric_families import Family

_EOF: Final = b"# EOF\n"
POOL_LABEL: Final = "inference_pool"
"""Label with the name of the pool."""
_SAMPLES: Final = 200
"""Samples of one family in a piece: about 1 ms."""


_Part: TypeAlias = Family[Any] | Mirror | Metric
_PartOf: TypeAlias = "tuple[MetricsRegistry, str, _Part]"
"""A part of a pool's page; the pool is "" for the process."""


class HasLength(Protocol):
    """A part of the page that knows its length."""

    @property
    def page_bytes(self) -> int:
        """Its estimated length."""


@runtime_checkable
class Composite(Protocol):
    """A collector that has families of :mod:`.metric_families` among its metrics."""

    @property
    def page_bytes(self) -> int:
        """The estimated length of these families."""

    def parts(self) -> Iterable[_Part]:
        """Return everything, in the order of the page."""


class MetricsRegistry(CollectorRegistry):
    """A registry that lists its collectors.

    Args:
        has_former_names: Whether to export metrics under their former names, too.
    """

    def __init__(self, *, has_former_names: bool = False) -> None:
        super().__init__()
        self.has_former_names = has_former_names
        self.collected_bytes = 0
        """Length of the parts that prometheus_client wrote on the last whole page."""
        self._in_order: tuple[Collector, ...] = ()
        self._measured: tuple[HasLength, ...] = ()

    @property
    def page_bytes(self) -> int:
        """The estimated length of the page."""
        return sum([each.page_bytes for each in self._measured]) + self.collected_bytes

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """All registered collectors, in the order of their registration."""
        return self._in_order

    def register(self, collector: Collector) -> None:
        """Add a collector.

        Raises:
            ValueError: One of its names is in use.
        """
        is_measured = isinstance(collector, Family | Composite)
        if self.has_former_names and not is_measured and not isinstance(collector, Mirror):
            collector = MirroredCollector(collector)
        super().register(collector)
        self._in_order = (*self._in_order, collector)
        if isinstance(collector, Family | Composite):
            self._measured = (*self._measured, collector)
        if self.has_former_names and isinstance(collector, Family):
            mirror = mirror_of(collector)
            if mirror is not None:
                self.register(mirror)


class Exposition:
    """Writes the page of a process.

    Args:
        registry: Metrics of the process, or, with ``pools`` empty, all metrics.
        pools: Returns the registry of each pool by the pool's name, if several pools are served.
            Its samples get the label ``inference_pool``, unless they have it.
    """

    def __init__(
        self, registry: MetricsRegistry, pools: Callable[[], Mapping[str, MetricsRegistry]] = dict
    ) -> None:
        self._registry = registry
        self._pools = pools

    def render(self, *, openmetrics: bool, names: Sequence[str]) -> Iterator[bytes]:
        """Yield the page in pieces of about 64 KB, each of which takes about a millisecond.

        Thread-safe: the event loop may count meanwhile.

        Args:
            openmetrics: Use the OpenMetrics format instead of Prometheus's text format.
            names: Only samples of these names (``?name[]=``); empty for all.
        """
        wanted = set(names) or None
        pools = dict(self._pools())
        collected = dict.fromkeys((self._registry, *pools.values()), 0)
        for parts in self._families(pools):
            has_header = False
            for registry, pool, part in parts:
                for piece in _pieces(part, openmetrics=openmetrics, names=wanted):
                    if isinstance(part, Metric):
                        collected[registry] += len(piece)
                    yield _of_pool(pool, part, piece, has_header=has_header) if pool else piece
                    has_header = has_header or bool(piece)
        if openmetrics:
            yield _EOF
        if wanted is None:
            for registry, length in collected.items():
                registry.collected_bytes = length

    def _families(self, pools: Mapping[str, MetricsRegistry]) -> Iterator[Sequence[_PartOf]]:
        """Yield the parts of each metric: that of the process, and those of the pools."""
        if not pools:
            yield from ([(self._registry, "", part)] for part in _parts(self._registry))
            return
        # All samples of a metric must stand together.
        families: dict[str, list[_PartOf]] = {}
        for pool, registry in (("", self._registry), *pools.items()):
            for part in _parts(registry):
                families.setdefault(part.name, []).append((registry, pool, part))
        yield from families.values()


def _parts(registry: MetricsRegistry) -> Iterator[_Part]:
    for collector in registry.collectors:
        if isinstance(collector, Family | Mirror):
            yield collector
        elif isinstance(collector, Composite):
            yield from collector.parts()
        else:
            yield from collector.collect()


def _pieces(part: _Part, *, openmetrics: bool, names: Collection[str] | None) -> Iterator[bytes]:
    if isinstance(part, Metric):
        return _lines(part, openmetrics=openmetrics, names=names)
    return part.lines(openmetrics=openmetrics, names=names)


def _of_pool(pool: str, part: _Part, piece: bytes, *, has_header: bool) -> bytes:
    """Return a piece of a pool's metric with the pool's label, as a further part of the metric.

    It takes 0.3 us a line.
    """
    if POOL_LABEL in _label_names(part):
        if not has_header:
            return piece
        opening = unlabelled = b""
    else:
        label = f'{POOL_LABEL}="{pool}"'.encode()
        opening, unlabelled = b"{" + label + b",", b"{" + label + b"} "
    lines = []
    for line in piece.split(b"\n"):
        if line.startswith(b"#"):
            if not has_header:
                lines.append(line)
        elif opening and b"{" in line:
            lines.append(line.replace(b"{", opening, 1))
        elif opening and line:
            lines.append(line.replace(b" ", unlabelled, 1))
        else:
            lines.append(line)
    return b"\n".join(lines)


def _label_names(part: _Part) -> Collection[str]:
    if isinstance(part, Metric):
        return part.samples[0].labels if part.samples else ()
    return part.label_names


class _Only:
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def _lines(metric: Metric, *, openmetrics: bool, names: Collection[str] | None) -> Iterator[bytes]:
    """Yield the page of one metric, in pieces."""
    samples = metric.samples
    if names is not None:
        samples = [sample for sample in samples if sample.name in names]
        if not samples:
            return
    # In Prometheus's own format some samples move to the end.
    step = _SAMPLES if openmetrics or metric.type == "gauge" else max(1, len(samples))
    header = _page(metric, (), openmetrics=openmetrics)
    yield header
    for start in range(0, len(samples), step):
        page = _page(metric, samples[start : start + step], openmetrics=openmetrics)
        yield page.removeprefix(header)


def _page(metric: Metric, samples: Sequence[Any], *, openmetrics: bool) -> bytes:
    part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    part.samples = list(samples)
    if openmetrics:
        page: bytes = openmetrics_format.generate_latest(_Only(part))  # type: ignore[no-untyped-call] # it has no types
        return page.removesuffix(_EOF)
    return generate_latest(_Only(part))
