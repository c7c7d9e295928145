"""``multicluster-metrics-data-source`` and ``multicluster-metrics-extractor``: load of clusters.

The source requests the metrics page of each cluster's own EPP. It is ``metrics-data-source`` with
other defaults: ``https``, and the server's certificate is checked (``insecureSkipVerify: false``)
against ``caCertPath`` or the authorities that the system trusts, because the page comes from
another cluster. The page is at the address in the endpoint's label ``metricsAddress`` (with
``metricsPort``), otherwise at the endpoint's host and ``port``. A page may have 8 MiB, like all
pages (``--max-scrape-page-bytes``).

The extractor reads the averages over a cluster's pool::

    kvCacheUtilizationMetric    ->  llm-d.ai/multicluster-kv-cache-utilization
    queueSizeMetric             ->  llm-d.ai/multicluster-queue-size

A name may have label matchers, ``name{name=my-pool}``, which a page with several pools needs: all
matching series are summed. If a value is missing, negative or not a number, its attribute is
removed from the endpoint and an extract error is counted; the other value is still read.

The Go EPP does not specify whether ``port`` or the labels take precedence (here the labels), nor
the effect of a missing value.

Writes: the two attributes above, whose keys have no producer's name.
Example::

    plugins:
      - type: multicluster-metrics-data-source
        parameters: {caCertPath: /etc/epp/clusters-ca.pem, interval: 1s}
      - type: multicluster-metrics-extractor
      - type: multicluster-queue-scorer
    dataLayer:
      injectDefaults: false
      sources:
        - pluginRef: multicluster-metrics-data-source
          extractors: [{pluginRef: multicluster-metrics-extractor}]
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Final, Literal

import msgspec

from epp.data_layer.plugins import (
    Extractor,
    OpenPage,
    Page,
    PageClient,
    PageError,
    ScrapeConnectError,
)
from epp.scheduling import AttributeKey, Endpoint
from epp_plugins.data_sources.http_sources import HttpSource, MetricsParams
from epp_plugins.data_sources.metric_spec import MetricSpec
from epp_plugins.data_sources.metrics_page import EngineMetrics, MetricsPageScanner
from epp_plugins.multicluster.discovery import metrics_address
from epp_plugins.state_keys import MULTICLUSTER_KV_CACHE_UTILIZATION, MULTICLUSTER_QUEUE_SIZE

_KV_CACHE_METRIC: Final = "llm_d_epp_average_kv_cache_utilization"
_QUEUE_METRIC: Final = "llm_d_epp_average_queue_size"
_KEYS: Final = (MULTICLUSTER_KV_CACHE_UTILIZATION, MULTICLUSTER_QUEUE_SIZE)


class SourceParams(MetricsParams, frozen=True):
    """Parameters of ``multicluster-metrics-data-source``."""

    scheme: Literal["http", "https"] = "https"
    """``http`` to scrape without TLS."""
    insecure_skip_verify: bool = False
    """Whether to accept any server certificate."""


class MulticlusterMetricsDataSource(HttpSource):
    """Scrapes the metrics page of a cluster."""

    type: ClassVar[str] = "multicluster-metrics-data-source"

    def __init__(self, name: str, params: SourceParams, *, open_page: OpenPage) -> None:
        super().__init__(name, params, open_page=open_page)

    def open(self, endpoint: Endpoint) -> PageClient:
        return _ClusterPage(self, endpoint)

    def address_of(self, endpoint: Endpoint) -> str:
        named = metrics_address(endpoint.address, endpoint.labels)
        return super().address_of(endpoint) if named is None else named

    def open_at(self, address: str) -> PageClient:
        """Return a client for the page at ``host:port``."""
        return self._open_page(address, self._path, self._tls)


class _ClusterPage:
    """The page of one cluster; follows changes of the address in its labels."""

    def __init__(self, source: MulticlusterMetricsDataSource, endpoint: Endpoint) -> None:
        self._source = source
        self._endpoint = endpoint
        self._address = ""
        self._client: PageClient | None = None

    async def get(self) -> Page:
        try:
            address = self._source.address_of(self._endpoint)
        except ValueError as error:  # invalid labels from another discovery plugin
            raise ScrapeConnectError(str(error)) from None
        if self._client is None or address != self._address:
            self.close()
            self._address, self._client = address, self._source.open_at(address)
        return await self._client.get()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class ExtractorParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``multicluster-metrics-extractor``."""

    kv_cache_utilization_metric: str = ""
    """Gauge of the used fraction of the KV caches, 0.0 to 1.0; "" for
    ``llm_d_epp_average_kv_cache_utilization``."""
    queue_size_metric: str = ""
    """Gauge of the waiting requests; "" for ``llm_d_epp_average_queue_size``."""


class MulticlusterMetricsExtractor(Extractor):
    """Reads the average load of a cluster's pool."""

    type: ClassVar[str] = "multicluster-metrics-extractor"
    writes: ClassVar[tuple[AttributeKey[Any], ...]] = _KEYS

    def __init__(self, name: str, params: ExtractorParams) -> None:
        self.name = name
        self._specs = (
            _spec(
                "kvCacheUtilizationMetric", params.kv_cache_utilization_metric or _KV_CACHE_METRIC
            ),
            _spec("queueSizeMetric", params.queue_size_metric or _QUEUE_METRIC),
        )
        self._scanner = MetricsPageScanner(EngineMetrics(engine="cluster", custom=self._specs))

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        for _ in self._steps(endpoint, page):
            pass

    def steps(self, endpoint: Endpoint, page: Page) -> Iterator[None]:
        return self._steps(endpoint, page)

    def _steps(self, endpoint: Endpoint, page: Page) -> Iterator[None]:
        scanned = yield from self._scanner.steps(page.body, page.requested_at)
        missing = []
        for key, spec, value in zip(_KEYS, self._specs, scanned.custom, strict=True):
            if value is None or value < 0:
                missing.append(spec.text)
                endpoint.attributes.pop(key, None)
            else:
                endpoint.attributes[key] = value
        if missing:
            raise PageError(f"the page has no number of at least 0 for {', '.join(missing)}")


def _spec(field: str, text: str) -> MetricSpec:
    try:
        return MetricSpec.parse(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
