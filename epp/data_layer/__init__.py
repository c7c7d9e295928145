"""Endpoints of the pool and their data: discovery, scraping, snapshots, objectives, rewrites."""

from epp.data_layer.address import join_address, split_address
from epp.data_layer.discoveries import Discoveries
from epp.data_layer.drain_calls import DrainCalls
from epp.data_layer.draining import DRAIN_LABEL, DrainMarks
from epp.data_layer.endpoints_page import UNWATCHED, EndpointsView
from epp.data_layer.errors import (
    DataLayerError,
    DiscoveryError,
    DuplicateEndpointError,
    ObjectFileError,
    PageError,
    ScrapeError,
)
from epp.data_layer.grpc_calls import GrpcCalls
from epp.data_layer.health_check import HealthCheck
from epp.data_layer.http_calls import HttpCalls
from epp.data_layer.http_client import MAX_PAGE_BYTES, HttpClient, page_opener
from epp.data_layer.object_files import ObjectFiles
from epp.data_layer.object_notifications import ObjectFeed
from epp.data_layer.objects import Objective, ObjectStore, PolicyMeta, Rewrite, RewriteRule
from epp.data_layer.operator_names import configured_names, served_names
from epp.data_layer.plugins import (
    DataSource,
    EndpointChange,
    EndpointDiscovery,
    EndpointEvent,
    EndpointListener,
    EndpointSink,
    EndpointSource,
    EndpointSpec,
    Extractor,
    LoadReport,
    ObjectChange,
    ObjectEvent,
    ObjectKind,
    ObjectListener,
    ObjectSource,
    OpenPage,
    Page,
    PageClient,
    ReportLoad,
    ignore_report,
)
from epp.data_layer.runtime import DataLayerRuntime, polled
from epp.data_layer.scrape_observers import NullScrapeObserver, ScrapeObserver, ScrapeObservers
from epp.data_layer.scrape_pace import DEFAULT_SHARE
from epp.data_layer.scrape_state import MetricsAge, ScrapeState
from epp.data_layer.scraper import DataBinding, Scraper
from epp.data_layer.shared_connections import SharedConnections
from epp.data_layer.shared_labels import share_labels
from epp.data_layer.sharing import Alone, PoolSharing
from epp.data_layer.static import StaticDiscovery, fixed_discoveries
from epp.data_layer.store import EndpointStore, PoolListener

__all__ = [
    "DEFAULT_SHARE",
    "DRAIN_LABEL",
    "MAX_PAGE_BYTES",
    "UNWATCHED",
    "Alone",
    "DataBinding",
    "DataLayerError",
    "DataLayerRuntime",
    "DataSource",
    "Discoveries",
    "DiscoveryError",
    "DrainCalls",
    "DrainMarks",
    "DuplicateEndpointError",
    "EndpointChange",
    "EndpointDiscovery",
    "EndpointEvent",
    "EndpointListener",
    "EndpointSink",
    "EndpointSource",
    "EndpointSpec",
    "EndpointStore",
    "EndpointsView",
    "Extractor",
    "GrpcCalls",
    "HealthCheck",
    "HttpCalls",
    "HttpClient",
    "LoadReport",
    "MetricsAge",
    "NullScrapeObserver",
    "ObjectChange",
    "ObjectEvent",
    "ObjectFeed",
    "ObjectFileError",
    "ObjectFiles",
    "ObjectKind",
    "ObjectListener",
    "ObjectSource",
    "ObjectStore",
    "Objective",
    "OpenPage",
    "Page",
    "PageClient",
    "PageError",
    "PolicyMeta",
    "PoolListener",
    "PoolSharing",
    "ReportLoad",
    "Rewrite",
    "RewriteRule",
    "ScrapeError",
    "ScrapeObserver",
    "ScrapeObservers",
    "ScrapeState",
    "Scraper",
    "SharedConnections",
    "StaticDiscovery",
    "configured_names",
    "fixed_discoveries",
    "ignore_report",
    "join_address",
    "page_opener",
    "polled",
    "served_names",
    "share_labels",
    "split_address",
]
