"""EndpointPickerConfig, as written in the file: the reference's names, strict.

The sections that this EPP does not act on yet are known by name and refused, never ignored.
"""

from typing import Any

import msgspec

API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND = "EndpointPickerConfig"
UNSUPPORTED_SECTIONS = ("flowControl", "requestHandler", "saturationDetector", "parser")


class _Section(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Strict, camel-cased."""


class PluginEntry(_Section):
    """One plugin instance."""

    type: str
    name: str = ""
    """Defaults to the type; unique."""
    parameters: dict[str, Any] | None = None


class ProfilePlugin(_Section):
    """A plugin's place in a profile."""

    plugin_ref: str
    weight: float | None = None
    """Scorers only; 1.0 when absent."""


class ProfileEntry(_Section):
    """One scheduling profile."""

    name: str
    plugins: list[ProfilePlugin] = []


class DiscoveryEntry(_Section):
    """The plugin that finds the endpoints."""

    plugin_ref: str


class DataLayerEntry(_Section):
    """The data layer; sources and extractors are the built-in scraper's for now."""

    discovery: DiscoveryEntry | None = None


class ConfigFile(_Section):
    """The whole file."""

    api_version: str
    kind: str
    feature_gates: list[str] = []
    plugins: list[PluginEntry] = []
    scheduling_profiles: list[ProfileEntry] = []
    data_layer: DataLayerEntry = msgspec.field(default_factory=DataLayerEntry)


DEFAULT_CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""
"""What runs without a configuration file: the reference's default."""
