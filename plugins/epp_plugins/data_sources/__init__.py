"""Where endpoints come from, what they are asked, and what is read out of their answers."""

from epp_plugins.data_sources.core_metrics import CoreMetricsExtractor
from epp_plugins.data_sources.file_discovery import FileDiscovery
from epp_plugins.data_sources.http_sources import MetricsDataSource, ModelsDataSource
from epp_plugins.data_sources.models import ModelsDataExtractor

__all__ = [
    "CoreMetricsExtractor",
    "FileDiscovery",
    "MetricsDataSource",
    "ModelsDataExtractor",
    "ModelsDataSource",
]
