"""Schema of EndpointPickerConfig.

Everything except ``extensions`` is defined by the Go EPP. Fields keep the values of the file (for
example durations as text), so that a configuration can be shown as written.
:mod:`epp.config.structs` validates them with the ``check`` in their metadata.
"""

import math
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from epp.inputs import duration_seconds, quantity

API_VERSION: Final = "llm-d.ai/v1alpha1"
API_VERSION_1: Final = "llm-d.ai/v1"
DEPRECATED_API_VERSION: Final = "inference.networking.x-k8s.io/v1alpha1"
KIND: Final = "EndpointPickerConfig"

PluginRef = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "plugin"})]
"""Name of an entry of ``plugins``."""

MemberRef = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "member"})]
"""Name of an entry of ``plugins``, or type of a default plugin of profiles."""

PolicyRef = Annotated[
    str, msgspec.Meta(min_length=1, extra={"refers_to": "policy", "empty_is_absent": True})
]
"""Name of an entry of ``plugins``, or type of a built-in flow-control policy; "" for the default,
as in the Go EPP."""

EvictionRef = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "eviction policy"})]
"""Name of an entry of ``plugins``, or type of a built-in eviction policy."""

ProfileRef = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "profile"})]
"""Name of an entry of ``schedulingProfiles``."""

Duration = Annotated[
    str,
    msgspec.Meta(extra={"check": duration_seconds}, extra_json_schema={"examples": ["60s"]}),
]
"""A Go duration."""

Quantity = Annotated[
    str | int,
    msgspec.Meta(extra={"check": quantity}, extra_json_schema={"examples": ["10Gi", 5000]}),
]
"""A Kubernetes quantity."""

Gates = Annotated[
    tuple[str, ...],
    msgspec.Meta(extra={"not_a_mapping": "write `featureGates: [flowControl=true]`"}),
]
"""Feature gates. Kubernetes writes them as a mapping, a likely mistake here."""


def _check_weight(weight: str | float) -> None:
    if isinstance(weight, str) or not math.isfinite(weight):
        what = f"the text `{weight}`" if isinstance(weight, str) else f"`{weight}`"
        raise ValueError(f"weight is {what}; it must be a finite number")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all sections: camel-cased names, no unknown fields."""


class PluginEntry(Section, frozen=True):
    """One plugin instance."""

    type: Annotated[str, msgspec.Meta(min_length=1)]
    """A registered type, or ``file:PATH:CLASS``."""
    name: str = ""
    """Unique; defaults to the type."""
    parameters: dict[str, Any] | None = None
    """Defined by the type."""


class ProfilePlugin(Section, frozen=True):
    """A plugin in a profile."""

    plugin_ref: MemberRef
    weight: Annotated[float, msgspec.Meta(extra={"check": _check_weight})] | None = None
    """Scorers only; 1.0 when absent. Below 0, a high score counts against an endpoint."""


class ProfileEntry(Section, frozen=True):
    """One scheduling profile."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    plugins: tuple[ProfilePlugin, ...] = ()


class ReferredPlugin(Section, frozen=True):
    """A reference to a plugin."""

    plugin_ref: PluginRef


class DiscoveryEntry(Section, frozen=True):
    """The discovery plugin, named by one of the two fields."""

    plugin_ref: PluginRef | None = None
    endpoints: ReferredPlugin | None = None
    """Used with ``apiVersion: llm-d.ai/v1``; older versions use ``pluginRef``."""

    @property
    def plugin(self) -> str:
        """Name of the plugin."""
        return self.plugin_ref or (self.endpoints.plugin_ref if self.endpoints else "")

    @property
    def path(self) -> str:
        """Path of the field that names it."""
        below = "endpoints.pluginRef" if self.endpoints else "pluginRef"
        return f"dataLayer.discovery.{below}"


class SourceEntry(Section, frozen=True):
    """A data source and its extractors."""

    plugin_ref: PluginRef
    extractors: tuple[ReferredPlugin, ...] = ()


class DataLayerEntry(Section, frozen=True):
    """Discovery and scraping of endpoints."""

    inject_defaults: bool = True
    """Whether to add ``metrics-data-source`` with ``core-metrics-extractor`` if absent."""
    sources: tuple[SourceEntry, ...] = ()
    discovery: DiscoveryEntry | None = None
    peer_discovery: ReferredPlugin | None = None
    cross_replica_syncer_plugin_ref: (
        Annotated[PluginRef, msgspec.Meta(extra={"empty_is_absent": True})] | None
    ) = None
    cross_replica_sync_interval: Duration | None = None


class DetectorRef(Section, frozen=True):
    """The saturation detector; the default one needs no entry in ``plugins``."""

    plugin_ref: str = ""
    """"" for the default one."""


class PriorityBandTemplate(Section, frozen=True):
    """Limits and policies of a priority band; absent fields have the Go EPP's defaults."""

    fields_elsewhere: ClassVar = dict.fromkeys(
        ("requestTTL", "floorShare"), "extensions.flowControl.priorityBands[]"
    )
    newer_fields: ClassVar = {
        "defaultRequestTTL": "give `requestTTL` under `extensions.flowControl.priorityBands[]`"
    }

    priority: int | None = None
    """Has no effect in a template, but the Go EPP accepts it there."""
    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    fairness_policy_ref: PolicyRef | None = None
    ordering_policy_ref: PolicyRef | None = None


class PriorityBand(PriorityBandTemplate, frozen=True, kw_only=True):
    """One priority band."""

    priority: int = 0


class FlowControlEntry(Section, frozen=True):
    """Queues in front of a saturated pool."""

    fields_elsewhere: ClassVar = dict.fromkeys(
        ("floorShare", "whenFiltered", "whenFull"), "extensions.flowControl"
    )

    max_bytes: Quantity | None = None
    """None or 0 for no limit."""
    max_requests: Quantity | None = None
    """None or 0 for no limit."""
    default_request_ttl: Duration | None = msgspec.field(default=None, name="defaultRequestTTL")
    no_endpoint_request_ttl: Duration | None = msgspec.field(
        default=None, name="noEndpointRequestTTL"
    )
    default_priority_band: PriorityBandTemplate | None = None
    default_negative_priority_band: PriorityBandTemplate | None = None
    priority_bands: tuple[PriorityBand, ...] = ()
    usage_limit_policy_plugin_ref: PolicyRef | None = None
    saturation_detector: DetectorRef | None = None
    enable_eviction: bool = False


class ParserRef(Section, frozen=True):
    """A parser: the name of an entry of ``plugins``, or a plugin type."""

    plugin_ref: Annotated[str, msgspec.Meta(min_length=1)]


class RequestHandlerEntry(Section, frozen=True):
    """How requests are parsed."""

    parsers: tuple[ParserRef, ...] = ()


class ShadowEntry(Section, frozen=True):
    """A shadow profile: it runs for comparison, and its result is not used."""

    profile: ProfileRef
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of requests for which it runs."""
    budget_ms: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Mean time per request of the sample, in milliseconds; not a limit of a single run.

    After a run that takes longer, requests of the sample are skipped until the mean is down to it.
    """


class GuardRailsEntry(Section, frozen=True):
    """Handling of plugin failures."""

    failure_policy: dict[PluginRef, Literal["open", "closed"]] = {}
    """By filter name: whether a failing filter passes all endpoints (``open``) or none."""
    disable_after: Annotated[int, msgspec.Meta(ge=1)] = 10
    """Failures in a row after which a plugin is disabled until the next reload."""
    slow_call_ms: Annotated[float, msgspec.Meta(gt=0)] = 50.0
    """Milliseconds above which a call counts as an overrun."""


class BandExtension(Section, frozen=True):
    """Fields of a priority band that the Go EPP does not have."""

    fields_elsewhere: ClassVar = dict.fromkeys(
        ("maxBytes", "maxRequests", "fairnessPolicyRef", "orderingPolicyRef"),
        "flowControl.priorityBands[]",
    )

    priority: int
    request_ttl: Duration | None = msgspec.field(default=None, name="requestTTL")
    """How long its requests may queue; 0s for no limit; default
    ``flowControl.defaultRequestTTL``."""
    floor_share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] | None = None
    """Default: ``extensions.flowControl.floorShare``."""


class EvictionEntry(Section, frozen=True):
    """Eviction of requests in flight; requires ``flowControl.enableEviction``."""

    min_run_time: Duration = "0s"
    """Time after dispatch during which a request cannot be evicted."""
    max_per_decision: Annotated[int, msgspec.Meta(ge=1)] = 2
    confirmation_timeout: Duration = "10s"
    """How long to wait for the end of a victim's stream."""
    grace: Duration | None = None
    """Pause between evictions; default: set by the saturation detector."""
    filter_plugin_ref: EvictionRef | None = None
    """Selects the requests that may be evicted."""
    order_plugin_ref: EvictionRef | None = None
    """Orders the candidates for eviction."""


class FlowControlExtension(Section, frozen=True):
    """Fields of flow control that the Go EPP does not have."""

    floor_share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.05
    """Minimum share of dispatches for each band while higher bands have queued requests."""
    when_filtered: Literal["wait", "refuse"] = "wait"
    """What happens to a request if a profile's filters leave no endpoint."""
    when_full: Literal["displace", "refuse"] = "displace"
    """What happens to a request that arrives when a limit is reached: it displaces a queued request
    of the largest flow, or it is refused."""
    priority_bands: tuple[BandExtension, ...] = ()
    eviction: EvictionEntry | None = None


class SessionPluginEntry(Section, frozen=True):
    """Settings of a session plugin."""

    enabled: bool = True
    priority: int = 0
    """Higher priorities run first; ties are ordered by name."""
    arguments: dict[str, Any] = {}
    """Defined by the plugin."""


class SessionsEntry(Section, frozen=True):
    """Actions and plugins of the sessions that dispatch queued requests."""

    actions: tuple[Literal["allocate", "reclaim", "preempt"], ...] = ("allocate",)
    """In execution order."""
    plugins: dict[Annotated[str, msgspec.Meta(min_length=1)], SessionPluginEntry] = {}
    """Key: name of an installed plugin, or ``file:PATH:CLASS``."""


class ExtensionsEntry(Section, frozen=True):
    """Settings that the Go EPP does not have."""

    allow_experimental_plugins: bool = False
    """Allow plugin types that the Go EPP marks as Alpha, like the flag
    ``--allow-experimental-plugins``."""
    shadow: tuple[ShadowEntry, ...] = ()
    guard_rails: GuardRailsEntry = GuardRailsEntry()
    flow_control: FlowControlExtension = FlowControlExtension()
    sessions: SessionsEntry = SessionsEntry()


class ConfigFile(Section, frozen=True):
    """The whole file."""

    api_version: Literal[
        "llm-d.ai/v1alpha1", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"
    ]
    kind: Literal["EndpointPickerConfig"]
    feature_gates: Gates = ()
    """``gate``, ``gate=true`` or ``gate=false``."""
    plugins: tuple[PluginEntry, ...] = ()
    scheduling_profiles: tuple[ProfileEntry, ...] = ()
    data_layer: DataLayerEntry = DataLayerEntry()
    flow_control: FlowControlEntry | None = None
    request_handler: RequestHandlerEntry = RequestHandlerEntry()
    saturation_detector: DetectorRef | None = None
    """Deprecated: use ``flowControl.saturationDetector``; the loader moves it there."""
    parser: ParserRef | None = None
    """Deprecated: use ``requestHandler.parsers``; the loader moves it there."""
    extensions: ExtensionsEntry = ExtensionsEntry()


DEFAULT_CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""
"""Used without a configuration file: the Go EPP's default."""
