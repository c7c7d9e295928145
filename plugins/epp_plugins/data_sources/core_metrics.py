"""``core-metrics-extractor``: reads load, KV cache and LoRA adapters from a model server's metrics.

The names of the metrics depend on the engine. The endpoint's label ``engineLabelKey`` (or the older
``inference.networking.k8s.io/engine-type``) names it; without a label, or if the engine is unknown,
``defaultEngine`` is used. ``vllm``, ``sglang``, ``trtllm-serve``, ``triton`` and
``triton-tensorrt-llm`` are built in. An entry of ``engineConfigs`` with the same name replaces all
of its metrics, or, if it names no metric but custom ones, adds these.

A metric is ``name`` or ``name{label=value}``. Its series are summed, or averaged if it is a
fraction. An empty name is not read.

If the metric of waiting or running requests is not on a page, the endpoint's load is that of its
last complete page, and becomes stale like that of an endpoint that is not scraped. KV cache usage
that is missing keeps its last value, or is 0.5 if there was none. The other values of the page are
used. The missing metrics are logged once for each endpoint, and an extract error is counted. A page
with none of these metrics is refused.

``customMetrics`` become endpoint attributes ``attributeKey/core-metrics-extractor``, and, if the
extractor has another name, also ``attributeKey/NAME``. If a metric is missing, its attribute is
removed from the endpoint, and an extract error is counted.

Writes: ``endpoint.metrics``; the attributes of ``customMetrics``.
Example::

    plugins:
      - type: core-metrics-extractor
        parameters:
          defaultEngine: mine
          engineConfigs:
            - name: mine
              queuedRequestsSpec: mine_requests{state=queued}
              runningRequestsSpec: mine_requests{state=running}
              kvUsageSpec: mine_cache_usage
              customMetrics: [{attributeKey: gpu-heat, metricSpec: mine_gpu_celsius}]
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final
from weakref import WeakKeyDictionary

import msgspec

from epp.data_layer.plugins import Extractor, Page, PageError
from epp.scheduling import AttributeKey, Endpoint
from epp_plugins.data_sources.engines import BUILT_IN
from epp_plugins.data_sources.metric_spec import MetricSpec
from epp_plugins.data_sources.metrics_page import EngineMetrics, MetricsPageScanner, ScannedPage

DEFAULT_ENGINE_LABEL: Final = "llm-d.ai/engine-type"
DEFAULT_ENGINE: Final = "vllm"
LEGACY_ENGINE_LABEL: Final = "inference.networking.k8s.io/engine-type"

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class CustomMetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A metric that becomes an endpoint attribute."""

    attribute_key: _Text
    """Name of the attribute for filters and scorers."""
    metric_spec: _Text
    """The metric; its series are summed."""


class EngineParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The metrics of one engine."""

    name: _Text
    """Value of the engine label."""
    queued_requests_spec: str = ""
    """Gauge of the waiting requests."""
    running_requests_spec: str = ""
    """Gauge of the running requests."""
    kv_usage_spec: str = ""
    """Gauge of the used fraction of the KV cache, 0.0 to 1.0."""
    lora_spec: str = ""
    """Gauge with vLLM's LoRA labels; its value is a timestamp, and the latest series counts."""
    cache_info_spec: str = ""
    """Metric whose labels have the size of the KV cache."""
    cache_block_size_label_name: str = ""
    """Label of ``cacheInfoSpec`` with the tokens per block; "" for ``block_size``."""
    cache_num_blocks_label_name: str = ""
    """Label of ``cacheInfoSpec`` with the number of blocks; "" for ``num_gpu_blocks``."""
    cache_block_size_spec: str = ""
    """Gauge of the tokens per block, if no label has it."""
    cache_num_blocks_spec: str = ""
    """Gauge of the number of blocks of the KV cache, if no label has it."""
    custom_metrics: tuple[CustomMetric, ...] = ()
    """Metrics that become attributes."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``core-metrics-extractor``."""

    engine_label_key: str = DEFAULT_ENGINE_LABEL
    """Label of endpoints with the name of the engine; "" for the default."""
    default_engine: str = DEFAULT_ENGINE
    """Engine of endpoints without the label; "" for the default."""
    engine_configs: tuple[EngineParams, ...] = ()
    """Further engines, or replacements of built-in ones."""


_Keys = tuple[AttributeKey[float], ...]
_Reader = tuple[MetricsPageScanner, tuple[_Keys, ...], _Keys]
"""Scanner of an engine's pages, keys of each of its custom metrics, keys of other engines."""


@dataclass(frozen=True, slots=True)
class _LastPage:
    """The last complete page of an endpoint; the page of an idle server does not change."""

    scanner: MetricsPageScanner
    digest: int
    scanned: ScannedPage


class CoreMetricsExtractor(Extractor):
    """Reads ``endpoint.metrics`` from the metrics pages of known engines."""

    type: ClassVar[str] = "core-metrics-extractor"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self.warnings: list[str] = []
        self._label = params.engine_label_key or DEFAULT_ENGINE_LABEL
        engines = {engine.engine: engine for engine in BUILT_IN}
        producers = dict.fromkeys((self.type, name))
        keys: dict[str, tuple[_Keys, ...]] = {}
        for index, config in enumerate(params.engine_configs):
            if config.name in keys:
                raise ValueError(f"engineConfigs[{index}].name: {config.name!r} is there twice")
            made = _engine(config, f"engineConfigs[{index}]")
            known = engines.get(config.name)
            if any(made.own_specs()):
                engines[config.name] = made
            elif known is not None:  # only custom metrics are added
                engines[config.name] = replace(known, custom=made.custom)
            else:
                engines[config.name] = made
                if not made.custom:
                    self.warnings.append(
                        f"engineConfigs[{index}]: engine {config.name!r} is not built in and names"
                        " no metric, so nothing is read from its pages"
                    )
            attributes = [custom.attribute_key for custom in config.custom_metrics]
            for place, attribute in enumerate(attributes):
                if attribute in attributes[:place]:
                    raise ValueError(
                        f"engineConfigs[{index}].customMetrics[{place}].attributeKey:"
                        f" {attribute!r} is there twice"
                    )
            keys[config.name] = tuple(
                tuple(AttributeKey(f"{each}/{producer}") for producer in producers)
                for each in attributes
            )
        default = params.default_engine or DEFAULT_ENGINE
        if default not in engines:
            raise ValueError(
                f"defaultEngine: no engine is called {default!r}; known: "
                + ", ".join(sorted(engines))
            )
        # Set per instance, unlike the keys of most plugins: they depend on its parameters.
        self.writes: tuple[AttributeKey[Any], ...] = tuple(  # type: ignore[misc]
            dict.fromkeys(key for own in keys.values() for names in own for key in names)
        )
        self._readers: dict[str, _Reader] = {}
        for engine, metrics in engines.items():
            own = keys.get(engine, ())
            others = tuple(key for key in self.writes if not any(key in names for names in own))
            self._readers[engine] = (MetricsPageScanner(metrics), own, others)
        self._default = self._readers[default]
        self._last_pages: WeakKeyDictionary[Endpoint, _LastPage] = WeakKeyDictionary()

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        for _ in self._steps(endpoint, page):
            pass

    def dump_state(self) -> Mapping[str, object]:
        return {"endpoints_with_page": len(self._last_pages)}

    def steps(self, endpoint: Endpoint, page: Page) -> Iterator[None]:
        return self._steps(endpoint, page)

    def _steps(self, endpoint: Endpoint, page: Page) -> Iterator[None]:
        scanner, keys, others = self._reader(endpoint.labels)
        scanned = yield from self._scan(endpoint, page, scanner)
        missing = []
        for names, value in zip(keys, scanned.custom, strict=True):
            if value is None:
                missing.append(names[0].name)
            for key in names:
                if value is None:
                    endpoint.attributes.pop(key, None)
                else:
                    endpoint.attributes[key] = value
        for key in others:  # left over from a previous engine label
            endpoint.attributes.pop(key, None)
        if scanned.missing:
            raise PageError(
                f"the page has no {', '.join(scanned.missing)}; the other values are used. Name the"
                f" server's own metric in engineConfigs, or its engine in the label {self._label}"
            )
        if missing:
            raise PageError(f"the page has no number for {', '.join(missing)}")

    def _scan(
        self, endpoint: Endpoint, page: Page, scanner: MetricsPageScanner
    ) -> Generator[None, None, ScannedPage]:
        """Write ``endpoint.metrics``, and return all values of the page."""
        digest = scanner.digest(page.body)
        last = self._last_pages.get(endpoint)
        if last is not None and last.digest == digest and last.scanner is scanner:
            endpoint.metrics = last.scanned.metrics.requested(page.requested_at)
            return last.scanned
        scanned = yield from scanner.steps(page.body, page.requested_at, endpoint.metrics)
        endpoint.metrics = scanned.metrics
        if scanned.missing:  # the values of an earlier page replace the missing ones
            self._last_pages.pop(endpoint, None)
        else:
            self._last_pages[endpoint] = _LastPage(scanner, digest, scanned)
        return scanned

    def _reader(self, labels: Mapping[str, str]) -> _Reader:
        engine = labels.get(self._label) or labels.get(LEGACY_ENGINE_LABEL, "")
        return self._readers.get(engine, self._default)


def _engine(config: EngineParams, path: str) -> EngineMetrics:
    def spec(field: str, text: str) -> MetricSpec:
        try:
            return MetricSpec.parse(text)
        except ValueError as error:
            raise ValueError(f"{path}.{field}: {error}") from None

    def specs(field: str, text: str) -> tuple[MetricSpec, ...]:
        return (spec(field, text),) if text else ()

    def optional(field: str, text: str) -> MetricSpec | None:
        return spec(field, text) if text else None

    return EngineMetrics(
        engine=config.name,
        waiting=specs("queuedRequestsSpec", config.queued_requests_spec),
        running=specs("runningRequestsSpec", config.running_requests_spec),
        kv_cache_usage=specs("kvUsageSpec", config.kv_usage_spec),
        adapters=optional("loraSpec", config.lora_spec),
        cache_config=optional("cacheInfoSpec", config.cache_info_spec),
        block_size_label=config.cache_block_size_label_name or "block_size",
        blocks_label=config.cache_num_blocks_label_name or "num_gpu_blocks",
        block_size=optional("cacheBlockSizeSpec", config.cache_block_size_spec),
        blocks=optional("cacheNumBlocksSpec", config.cache_num_blocks_spec),
        custom=tuple(
            spec(f"customMetrics[{index}].metricSpec", custom.metric_spec)
            for index, custom in enumerate(config.custom_metrics)
        ),
    )
