"""Where endpoints come from, as plugins."""

from epp_plugins.data_sources.file_discovery import FileDiscovery

__all__ = ["FileDiscovery"]
