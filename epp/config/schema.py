"""EndpointPickerConfig, as written in the file: the reference's sections and names, and ours.

Everything but ``extensions`` is the reference's. A field keeps what the file says (a duration its
text), so that a configuration can be shown as it was written; what a value means is checked by
:mod:`epp.config.structs` while it is read, through the ``check`` in its metadata.
"""

import math
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from epp.config.quantities import duration_seconds, quantity

API_VERSION: Final = "llm-d.ai/v1alpha1"
API_VERSION_1: Final = "llm-d.ai/v1"
DEPRECATED_API_VERSION: Final = "inference.networking.x-k8s.io/v1alpha1"
KIND: Final = "EndpointPickerConfig"

PluginRef = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "plugin"})]
"""Name of an entry of ``plugins``."""

MemberRef = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "member"})]
"""Name of an entry of ``plugins``, or the type of a plugin that defaulting may add to a profile."""

PolicyRef = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "policy"})]
"""Name of an entry of ``plugins``, or the type of a flow-control policy that is always there."""

EvictionRef = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "eviction policy"})]
"""The same of an eviction policy."""

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
"""Feature gates; Kubernetes' own are a mapping."""


def _check_weight(weight: str | float) -> None:
    if isinstance(weight, str) or not 0 <= weight < math.inf:
        what = f"the text `{weight}`" if isinstance(weight, str) else f"`{weight}`"
        raise ValueError(f"weight is {what}; it must be a finite number of 0 or more")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Strict, camel-cased."""


class PluginEntry(Section, frozen=True):
    """One plugin instance."""

    type: Annotated[str, msgspec.Meta(min_length=1)]
    """A registered type, or ``file:PATH:CLASS``."""
    name: str = ""
    """Unique; the type where there is none."""
    parameters: dict[str, Any] | None = None
    """What they are depends on the type."""


class ProfilePlugin(Section, frozen=True):
    """A plugin's place in a profile."""

    plugin_ref: MemberRef
    weight: Annotated[float, msgspec.Meta(extra={"check": _check_weight})] | None = None
    """Scorers only; 1.0 when absent."""


class ProfileEntry(Section, frozen=True):
    """One scheduling profile."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    plugins: tuple[ProfilePlugin, ...] = ()


class ReferredPlugin(Section, frozen=True):
    """A plugin that is named and no more."""

    plugin_ref: PluginRef


class DiscoveryEntry(Section, frozen=True):
    """The plugin that finds the endpoints; one of the two fields names it."""

    plugin_ref: PluginRef | None = None
    endpoints: ReferredPlugin | None = None
    """Where ``apiVersion: llm-d.ai/v1`` names it; an older file has it in ``pluginRef``."""

    @property
    def plugin(self) -> str:
        """Name of the plugin."""
        return self.plugin_ref or (self.endpoints.plugin_ref if self.endpoints else "")

    @property
    def path(self) -> str:
        """Where the file names it."""
        below = "endpoints.pluginRef" if self.endpoints else "pluginRef"
        return f"dataLayer.discovery.{below}"


class SourceEntry(Section, frozen=True):
    """A data source, and what is read out of its pages."""

    plugin_ref: PluginRef
    extractors: tuple[ReferredPlugin, ...] = ()


class DataLayerEntry(Section, frozen=True):
    """Where endpoints come from, and what is known of them."""

    inject_defaults: bool = True
    """Whether ``metrics-data-source`` with ``core-metrics-extractor`` is added if absent."""
    sources: tuple[SourceEntry, ...] = ()
    discovery: DiscoveryEntry | None = None
    peer_discovery: ReferredPlugin | None = None
    cross_replica_syncer_plugin_ref: PluginRef | None = None
    cross_replica_sync_interval: Duration | None = None


class DetectorRef(Section, frozen=True):
    """The saturation detector; its reference may name the default one, which needs no entry."""

    plugin_ref: str = ""
    """"" for the default one."""


class PriorityBandTemplate(Section, frozen=True):
    """Limits and policies of a priority band; what is absent has the reference's default."""

    fields_elsewhere: ClassVar = dict.fromkeys(
        ("requestTTL", "floorShare"), "extensions.flowControl.priorityBands[]"
    )
    newer_fields: ClassVar = {
        "defaultRequestTTL": "give `requestTTL` under `extensions.flowControl.priorityBands[]`"
    }

    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    fairness_policy_ref: PolicyRef | None = None
    ordering_policy_ref: PolicyRef | None = None


class PriorityBand(PriorityBandTemplate, frozen=True, kw_only=True):
    """One priority band."""

    priority: int


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
    """A parser; its reference may be a type, which needs no entry."""

    plugin_ref: Annotated[str, msgspec.Meta(min_length=1)]


class RequestHandlerEntry(Section, frozen=True):
    """How requests are read."""

    parsers: tuple[ParserRef, ...] = ()


class ShadowEntry(Section, frozen=True):
    """A profile that runs beside the real choice without effect."""

    profile: ProfileRef
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of requests that it runs for."""
    budget_ms: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Milliseconds it may take per request."""


class GuardRailsEntry(Section, frozen=True):
    """What happens when plugins fail."""

    failure_policy: dict[PluginRef, Literal["open", "closed"]] = {}
    """By filter: whether a failing one passes all endpoints or none."""
    disable_after: Annotated[int, msgspec.Meta(ge=1)] = 10
    """Failures in a row after which a plugin is left alone until the next reload."""
    slow_call_ms: Annotated[float, msgspec.Meta(gt=0)] = 50.0
    """Milliseconds above which a call counts as an overrun."""


class BandExtension(Section, frozen=True):
    """What a priority band has beyond the reference's."""

    fields_elsewhere: ClassVar = dict.fromkeys(
        ("maxBytes", "maxRequests", "fairnessPolicyRef", "orderingPolicyRef"),
        "flowControl.priorityBands[]",
    )

    priority: int
    request_ttl: Duration | None = msgspec.field(default=None, name="requestTTL")
    """How long its requests wait; ``flowControl.defaultRequestTTL`` if absent, 0s for ever."""
    floor_share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] | None = None
    """That of ``extensions.flowControl`` if absent."""


class EvictionEntry(Section, frozen=True):
    """How requests in flight are evicted for others; in effect with ``enableEviction``."""

    min_run_time: Duration = "0s"
    """How long a request is left alone after it was dispatched."""
    max_per_decision: Annotated[int, msgspec.Meta(ge=1)] = 2
    confirmation_timeout: Duration = "10s"
    """How long the end of a victim's stream is waited for."""
    grace: Duration | None = None
    """How long nobody is evicted after that; by the saturation detector if absent."""
    filter_plugin_ref: EvictionRef | None = None
    """Who may be evicted at all."""
    order_plugin_ref: EvictionRef | None = None
    """Who is evicted first."""


class FlowControlExtension(Section, frozen=True):
    """What flow control has beyond the reference's."""

    floor_share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.05
    """The part of all dispatches that each band gets while bands above it have work; 0 for none."""
    when_filtered: Literal["wait", "refuse"] = "wait"
    """What becomes of a request for which a profile's filters leave no endpoint."""
    when_full: Literal["displace", "refuse"] = "displace"
    """What happens to a request that arrives when a limit is reached: it displaces a waiting one of
    the flow that holds most, or it is refused."""
    priority_bands: tuple[BandExtension, ...] = ()
    eviction: EvictionEntry | None = None


class SessionPluginEntry(Section, frozen=True):
    """What is said of a session plugin."""

    enabled: bool = True
    priority: int = 0
    """Higher ones come first, then by name."""
    arguments: dict[str, Any] = {}
    """What they are depends on the plugin."""


class SessionsEntry(Section, frozen=True):
    """What the sessions are made of that dispatch waiting requests."""

    actions: tuple[Literal["allocate", "reclaim", "preempt"], ...] = ("allocate",)
    """In the order in which they run."""
    plugins: dict[Annotated[str, msgspec.Meta(min_length=1)], SessionPluginEntry] = {}
    """By name: that of an installed one, or ``file:PATH:CLASS``."""


class ExtensionsEntry(Section, frozen=True):
    """What this endpoint picker has and the reference has not."""

    allow_experimental_plugins: bool = False
    """Whether plugin types that the reference calls Alpha may be used without the flag
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
    """Deprecated for that of ``flowControl``."""
    parser: ParserRef | None = None
    """Deprecated for those of ``requestHandler``; the loader moves it there."""
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
"""What runs without a configuration file: the reference's default."""
