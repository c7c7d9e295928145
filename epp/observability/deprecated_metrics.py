"""Former names of metrics, for dashboards and autoscalers that still use them.

A family with a former name is a mirror: it stores no values and is computed from the current family
at each scrape, so it costs nothing per request. If it has fewer labels, the children that differ
only in the dropped labels are summed. The bytes that it adds to the page are counted with the
current family's children (:mod:`.page_budget`), as if none were summed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from epp.observability.metric_children import Child
from epp.observability.metric_families import Family

_PREFIX: Final = "llm_d_epp_"
_CHILDREN_AT_ONCE: Final = 200
"""Children that are summed before the page writer may yield: less than a millisecond."""


@dataclass(frozen=True, slots=True)
class FormerName:
    """A former name of a metric.

    Attributes:
        name: The name on the page.
        labels: Its labels; labels of the same name have the same values. None for all labels.
        renamed: Pairs of a former label name and the current one.
    """

    name: str
    labels: tuple[str, ...] | None = None
    renamed: tuple[tuple[str, str], ...] = ()


_MODELS: Final = ("model_name", "target_model_name")


def _objective(name: str, *labels: str) -> FormerName:
    return FormerName(f"inference_objective_{name}", (*_MODELS, *labels))


def _pool(name: str, *renamed: tuple[str, str]) -> FormerName:
    labels = ("name", *(former for former, _ in renamed))
    return FormerName(f"inference_pool_{name}", labels, renamed)


FORMER_NAMES: Final[dict[str, FormerName]] = {
    "request_total": _objective("request_total", "priority"),
    "request_error_total": _objective("request_error_total", "error_code"),
    "request_duration_seconds": _objective("request_duration_seconds"),
    "request_size_bytes": _objective("request_sizes"),
    "response_size_bytes": _objective("response_sizes"),
    "request_input_tokens": _objective("input_tokens"),
    "request_output_tokens": _objective("output_tokens"),
    "request_cached_tokens": _objective("prompt_cached_tokens"),
    "request_running": FormerName("inference_objective_running_requests", ("model_name",)),
    "request_ntpot_seconds": _objective("normalized_time_per_output_token_seconds"),
    "average_kv_cache_utilization": _pool("average_kv_cache_utilization"),
    "average_queue_size": _pool("average_queue_size"),
    "average_running_requests": _pool("average_running_requests"),
    "ready_endpoints": _pool("ready_pods"),
    "per_endpoint_queue_size": _pool(
        "per_pod_queue_size", ("model_server_pod", "model_server_endpoint")
    ),
    "scheduler_attempts_total": FormerName(
        "inference_extension_scheduler_attempts_total",
        ("status", "target_model_name", "pod_name", "namespace", "port"),
        (("pod_name", "endpoint_name"),),
    ),
    **{
        name: FormerName(f"inference_extension_{name}")
        for name in (
            "scheduler_e2e_duration_seconds",
            "plugin_duration_seconds",
            "info",
            "model_rewrite_decisions_total",
            "flow_control_request_queue_duration_seconds",
            "flow_control_dispatch_cycle_duration_seconds",
            "flow_control_request_enqueue_duration_seconds",
            "flow_control_queue_size",
            "flow_control_queue_bytes",
            "flow_control_pool_saturation",
        )
    },
    **{
        name: FormerName(f"inference_extension_{name}", ())
        for name in ("prefix_indexer_size", "prefix_indexer_hit_ratio", "prefix_indexer_hit_bytes")
    },
    **{
        name: FormerName(f"llm_d_inference_scheduler_{name}")
        for name in ("datalayer_poll_errors_total", "datalayer_extract_errors_total")
    },
    "disagg_decision_total": FormerName(
        "llm_d_inference_scheduler_disagg_decision_total", ("decision_type", "model_name")
    ),
}
"""By the current name without its prefix."""


class Mirror(Collector):
    """A family under its former name.

    Args:
        source: The current family.
        former: Its former name.
    """

    def __init__(self, source: Family[Any], former: FormerName) -> None:
        self._source = source
        self._text = _text(source.name)
        self._name = former.name
        self._labels = source.label_names if former.labels is None else former.labels
        self._pick = _picker(source.label_names, former)
        self._empty = self._new()
        source.mirrored_by(self)

    @property
    def name(self) -> str:
        """The former name."""
        return self._name

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of its labels."""
        return self._labels

    def cost(self, values: tuple[str, ...]) -> int:
        """Return an upper bound of the bytes that a source child with these label values adds."""
        return self._empty.cost(*self._pick(values))

    def collect(self) -> Iterable[Metric]:
        """Return the family with its samples."""
        copy = self._new()
        for _ in self._fill(copy):
            pass
        return copy.collect()

    def describe(self) -> Iterable[Metric]:
        """Return the family without samples, to reserve its names."""
        return self._empty.describe()

    def lines(self, *, openmetrics: bool, names: Collection[str] | None = None) -> Iterator[bytes]:
        """Yield the family's part of the page, see :meth:`.Family.lines`."""
        if names is not None and not any(name.startswith(self._empty.name) for name in names):
            return
        copy = self._new()
        for _ in self._fill(copy):
            yield b""
        yield from copy.lines(openmetrics=openmetrics, names=names)

    def _new(self) -> Family[Any]:
        return self._source.like(self._name, self._text, self._labels)

    def _fill(self, copy: Family[Child]) -> Iterator[None]:
        """Sum the source's children into ``copy``, some of them in each step."""
        for number, (values, child) in enumerate(self._source.children, 1):
            copy.labels(*self._pick(values)).absorb(child)
            if number % _CHILDREN_AT_ONCE == 0:
                yield


class MirroredCollector(Collector):
    """A collector whose metrics are repeated under their former names.

    Args:
        collector: Computes metrics at each scrape.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterable[Metric]:
        """Return each metric, followed by its copy under the former name."""
        for metric in self._collector.collect():
            yield metric
            if (former := former_name(metric.name, metric.type)) is not None:
                yield mirrored(metric, former)

    def describe(self) -> Iterable[Metric]:
        """Return what the collector describes."""
        describe: Callable[[], Iterable[Metric]] = getattr(self._collector, "describe", tuple)
        return describe()


def former_name(name: str, kind: str) -> FormerName | None:
    """Return the former name of a metric; None if it had none.

    Args:
        name: With its prefix, a counter's without ``_total``.
        kind: Its type.
    """
    suffix = "_total" if kind == "counter" else ""
    return FORMER_NAMES.get(name.removeprefix(_PREFIX) + suffix)


def mirror_of(family: Family[Any]) -> Mirror | None:
    """Return the mirror of ``family``; None if it has no former name."""
    former = former_name(family.name, family.kind)
    return None if former is None else Mirror(family, former)


def mirrored(metric: Metric, former: FormerName) -> Metric:
    """Return a gauge under its former name; samples that differ by a dropped label are summed."""
    family = Metric(former.name, _text(metric.name), metric.type)
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    present = dict(former.renamed)
    for sample in metric.samples:
        wanted = sample.labels if former.labels is None else former.labels
        key = tuple((label, sample.labels[present.get(label, label)]) for label in wanted)
        sums[key] = sums.get(key, 0.0) + sample.value
    for labels, value in sums.items():
        family.add_sample(former.name, dict(labels), value)
    return family


def _picker(
    labels: tuple[str, ...], former: FormerName
) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    if former.labels is None:
        return _all
    present = dict(former.renamed)
    return partial(_picked, [labels.index(present.get(each, each)) for each in former.labels])


def _all(values: tuple[str, ...]) -> tuple[str, ...]:
    return values


def _picked(indexes: list[int], values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([values[index] for index in indexes])


def _text(name: str) -> str:
    return f"Deprecated name of {name}, with the same numbers."
