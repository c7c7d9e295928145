"""Endpoints and what is known of them: discovery, scraping, snapshots."""

from epp.data_layer.address import join_address, split_address
from epp.data_layer.errors import (
    DataLayerError,
    DiscoveryError,
    DuplicateEndpointError,
    MetricsPageError,
    ScrapeError,
)
from epp.data_layer.http_client import HttpClient, Page
from epp.data_layer.metrics_page import VLLM, EngineMetrics, MetricsPageScanner
from epp.data_layer.plugins import (
    EndpointDiscovery,
    EndpointListener,
    EndpointSink,
    EndpointSpec,
)
from epp.data_layer.scrape_state import ScrapeState
from epp.data_layer.scraper import PageClient, ScrapeObserver, Scraper
from epp.data_layer.static import StaticDiscovery
from epp.data_layer.store import EndpointStore, PoolListener

__all__ = [
    "VLLM",
    "DataLayerError",
    "DiscoveryError",
    "DuplicateEndpointError",
    "EndpointDiscovery",
    "EndpointListener",
    "EndpointSink",
    "EndpointSpec",
    "EndpointStore",
    "EngineMetrics",
    "HttpClient",
    "MetricsPageError",
    "MetricsPageScanner",
    "Page",
    "PageClient",
    "PoolListener",
    "ScrapeError",
    "ScrapeObserver",
    "ScrapeState",
    "Scraper",
    "StaticDiscovery",
    "join_address",
    "split_address",
]
