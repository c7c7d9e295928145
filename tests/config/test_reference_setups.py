"""The reference's named set-ups load unchanged, and mean the same once the defaults are filled in.

Each is told of by facts: what every profile runs, in order and with weights, what defaulting adds,
and every warning.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from config.graphs import HEAD

from epp.building import make_builder
from epp.config import ConfigError, PluginGraph, load_text
from epp.config.supported import DEFAULT_PARSERS
from epp.scheduling import SchedulerProfile

BUILDER = make_builder(seed=0)
OLD_HEAD = HEAD.replace("llm-d.ai/", "inference.networking.x-k8s.io/")

PICKER = "max-score-picker"
HANDLER = "single-profile-handler"
DETECTOR = "utilization-detector"
DATA_LAYER = ("metrics-data-source", "core-metrics-extractor")
PREFIX = "approx-prefix-cache-producer"
LOAD = "inflight-load-producer"
TOKENS = "token-producer"
POLICIES = (
    "static-usage-limit-policy",
    "global-strict-fairness-policy",
    "fcfs-ordering-policy",
)
OPENAI = ("openai-parser",)

OLD_API = "apiVersion: is deprecated; write `llm-d.ai/v1alpha1`"
OLD_DETECTOR = "saturationDetector: is deprecated; use `flowControl.saturationDetector`"
SETS_ITSELF = (
    "plugins[0].type: type `disagg-headers-handler` is deprecated; `disagg-profile-handler` sets"
    " the headers itself"
)


def never_asked(place: int, name: str) -> str:
    return f"plugins[{place}]: `{name}` is never used: no profile names it"


def idle_in_profile(place: int, named: str) -> str:
    name, _, plugin_type = named.partition(" ")
    return (
        f"schedulingProfiles[0].plugins[{place}].pluginRef: `{name}` {plugin_type} does nothing in"
        " a profile, as it is neither filter, scorer nor picker"
    )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A configuration, and what it must come to."""

    text: str
    profiles: dict[str, str]
    """By name: filters | scorers with their weights | picker."""
    made: tuple[str, ...]
    """What defaulting adds, in the order in which it does; parsers apart."""
    parsers: tuple[str, ...] = DEFAULT_PARSERS
    handler: str = HANDLER
    detector: str = DETECTOR
    warnings: tuple[str, ...] = ()
    head: str = HEAD


ROLE_AND_PREFIX = "{pluginRef: max-score-picker}, {pluginRef: prefix-cache-scorer, weight: 2}"
PREFIX_OF_4096 = (
    "{type: approx-prefix-cache-producer,"
    " parameters: {maxPrefixTokensToMatch: 4096, lruCapacityPerServer: 31250}}"
)
DECIDER = "{type: prefix-based-pd-decider, parameters: {nonCachedTokens: 16}}"
DISAGGREGATED = """\
schedulingProfiles:
- {name: decode, plugins: [{pluginRef: decode-filter}, %(both)s]}
- {name: prefill, plugins: [{pluginRef: prefill-filter}, %(both)s]}
"""
WIDE = """\
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer, weight: 2},
    {pluginRef: prefix-cache-scorer%s}, {pluginRef: max-score-picker}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer, weight: 3},
    {pluginRef: queue-scorer, weight: 2}, {pluginRef: kv-cache-utilization-scorer, weight: 2},
    {pluginRef: max-score-picker}]
plugins: [{type: disagg-headers-handler}, {type: always-disagg-pd-decider}, {type: queue-scorer},
  {type: prefix-cache-scorer}, {type: kv-cache-utilization-scorer}, {type: active-request-scorer},
  {type: prefill-filter}, {type: decode-filter}, {type: max-score-picker},
  {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}]
"""
WIDE_PREFILL = (
    "prefill-filter | prefix-cache-scorer 3, queue-scorer 2, kv-cache-utilization-scorer 2"
    " | max-score-picker"
)
GPU = """\
dataLayer: {sources: [{pluginRef: gpu-pages, extractors: [{pluginRef: gpu}]}]}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter}, {pluginRef: not-hot},
    {pluginRef: cool, weight: 2.0}, {pluginRef: kv-cache-utilization-scorer, weight: 1.0}]
plugins:
- {type: kv-cache-utilization-scorer}
- {type: decode-filter}
- {name: gpu, type: dcgm-extractor}
- {name: gpu-pages, type: dcgm-data-source, parameters: {port: 9400}}
- type: endpoint-attribute-filter
  name: not-hot
  parameters: {%(filter)s, onMissing: Pass, fallbackOnEmpty: true,
    algorithm: {type: threshold, threshold: {operator: LessThanOrEqual, value: 0.9}}}
- type: endpoint-attribute-scorer
  name: cool
  parameters: {%(scorer)s, algorithm: {type: linear_lower_is_better,
    normalization: {fixedRange: {min: 0.0, max: 1.0}}}}
"""
GPU_PROFILE = "decode-filter, not-hot | cool 2, kv-cache-utilization-scorer 1 | max-score-picker"

SETUPS = {
    "cache of pictures": Setup(
        text="""\
plugins:
- {type: endpoint-notification-source}
- {type: mm-embeddings-cache-producer, parameters: {cacheSizeInMBPerServer: 2048}}
- {type: mm-embeddings-cache-scorer}
- {type: queue-scorer}
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: mm-embeddings-cache-producer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: mm-embeddings-cache-scorer, weight: 4}, {pluginRef: queue-scorer}]
""",
        profiles={"default": "| mm-embeddings-cache-scorer 4, queue-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER),
    ),
    "bursts": Setup(
        text="""\
plugins:
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 100, maxPerReplica: -1}}
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}
- {type: max-score-picker}
""",
        profiles={"default": "| prefix-cache-scorer 1 | max-score-picker"},
        made=(HANDLER, DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "cost of a request": Setup(
        text="""\
plugins:
- {type: openai-parser}
- name: cost
  type: request-attribute-reporter
  parameters:
    attributes:
    - key: {namespace: envoy.lb, name: x-gateway-inference-request-cost}
      expression: |
        usage.completion_tokens
      condition: "has(usage.completion_tokens)"
schedulingProfiles: [{name: default, plugins: [{pluginRef: openai-parser}, {pluginRef: cost}]}]
requestHandler: {parsers: [{pluginRef: openai-parser}]}
""",
        profiles={"default": "| | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER),
        parsers=("openai-parser",),
        warnings=(
            idle_in_profile(0, "openai-parser (openai-parser)"),
            idle_in_profile(1, "cost (request-attribute-reporter)"),
        ),
    ),
    "optimized baseline of scorers": Setup(
        text="""\
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2},
    {pluginRef: kv-cache-utilization-scorer, weight: 2},
    {pluginRef: prefix-cache-scorer, weight: 3}, {pluginRef: no-hit-lru-scorer, weight: 2}]
plugins: [{type: no-hit-lru-scorer}, {type: prefix-cache-scorer},
  {type: kv-cache-utilization-scorer}, {type: queue-scorer}]
""",
        profiles={
            "default": (
                "| queue-scorer 2, kv-cache-utilization-scorer 2, prefix-cache-scorer 3,"
                " no-hit-lru-scorer 2 | max-score-picker"
            )
        },
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, PREFIX, TOKENS),
    ),
    "optimized baseline of tokens in flight": Setup(
        text="""\
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-affinity-filter}, {pluginRef: token-load-scorer}]
plugins:
- {type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.80, maxTTFTPenaltyMs: 0}}
- {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 40960}}
- {type: inflight-load-producer}
- {type: token-load-scorer}
""",
        profiles={
            "default": "prefix-cache-affinity-filter | token-load-scorer 1 | max-score-picker"
        },
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "tiered prefix cache: a named producer beside the default one": Setup(
        text="""\
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2},
    {pluginRef: kv-cache-utilization-scorer, weight: 2.0},
    {pluginRef: gpu-prefix-cache-scorer, weight: 1.0},
    {pluginRef: cpu-prefix-cache-scorer, weight: 1.0}]
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: token-producer}
- {name: gpu-prefix-cache-scorer, type: prefix-cache-scorer}
- name: cpu-prefix-cache-scorer
  type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: cpu-prefix-cache-producer}
- name: cpu-prefix-cache-producer
  type: approx-prefix-cache-producer
  parameters: {autoTune: false, lruCapacityPerServer: 1000}
""",
        profiles={
            "default": (
                "| queue-scorer 2, kv-cache-utilization-scorer 2, gpu-prefix-cache-scorer 1,"
                " cpu-prefix-cache-scorer 1 | max-score-picker"
            )
        },
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, PREFIX),
    ),
    "tiered prefix cache: two named producers": Setup(
        text="""\
schedulingProfiles:
- {name: default, plugins: [{pluginRef: gpu}, {pluginRef: cpu}, {pluginRef: queue-scorer}]}
plugins:
- {type: queue-scorer}
- {name: gpu, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: gpu-cache}}
- {name: cpu, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: cpu-cache}}
- {name: gpu-cache, type: approx-prefix-cache-producer}
- name: cpu-cache
  type: approx-prefix-cache-producer
  parameters: {autoTune: false, lruCapacityPerServer: 82000}
""",
        profiles={"default": "| gpu 1, cpu 1, queue-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "prefill/decode": Setup(
        text=WIDE % ", weight: 3",
        profiles={
            "decode": (
                "decode-filter | active-request-scorer 2, prefix-cache-scorer 3 | max-score-picker"
            ),
            "prefill": WIDE_PREFILL,
        },
        handler="disagg-profile-handler",
        made=(DETECTOR, *DATA_LAYER, PREFIX, LOAD, TOKENS),
        warnings=(SETS_ITSELF,),
    ),
    "wide expert parallelism": Setup(
        text=WIDE % "",
        profiles={
            "decode": (
                "decode-filter | active-request-scorer 2, prefix-cache-scorer 1 | max-score-picker"
            ),
            "prefill": WIDE_PREFILL,
        },
        handler="disagg-profile-handler",
        made=(DETECTOR, *DATA_LAYER, PREFIX, LOAD, TOKENS),
        warnings=(SETS_ITSELF,),
    ),
    "wide expert parallelism, ranks told apart": Setup(
        text="""\
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer, weight: 1},
    {pluginRef: queue-scorer, weight: 1}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer, weight: 3},
    {pluginRef: active-request-scorer, weight: 2}, {pluginRef: queue-scorer, weight: 2}]
plugins: [{type: disagg-headers-handler}, {type: queue-scorer}, {type: active-request-scorer},
  {type: prefix-cache-scorer}, {type: decode-filter}, {type: prefill-filter},
  {type: prefix-based-pd-decider}, {type: token-producer},
  {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}]
""",
        profiles={
            "decode": "decode-filter | active-request-scorer 1, queue-scorer 1 | max-score-picker",
            "prefill": (
                "prefill-filter | prefix-cache-scorer 3, active-request-scorer 2, queue-scorer 2"
                " | max-score-picker"
            ),
        },
        handler="disagg-profile-handler",
        made=(PICKER, DETECTOR, *DATA_LAYER, LOAD, PREFIX),
        warnings=(SETS_ITSELF,),
    ),
    "simple": Setup(
        text=f"""\
schedulingProfiles:
- {{name: default, plugins: [{{pluginRef: decode-filter}}, {ROLE_AND_PREFIX}]}}
plugins: [{{type: single-profile-handler}}, {{type: max-score-picker}}, {{type: decode-filter}},
  {{type: prefix-cache-scorer}}, {PREFIX_OF_4096}]
""",
        profiles={"default": "decode-filter | prefix-cache-scorer 2 | max-score-picker"},
        made=(DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "prefill/decode with the deprecated handler": Setup(
        text=f"""\
plugins:
- {{type: prefill-header-handler}}
- {{type: pd-profile-handler, parameters: {{deciderPluginName: prefix-based-pd-decider}}}}
- {DECIDER}
- type: approx-prefix-cache-producer
  parameters: {{blockSizeTokens: 16, maxPrefixBlocksToMatch: 256, lruCapacityPerServer: 256}}
- {{type: prefix-cache-scorer}}
- {{type: max-score-picker}}
- {{type: decode-filter}}
- {{type: prefill-filter}}
{DISAGGREGATED % {"both": ROLE_AND_PREFIX}}""",
        profiles={
            "decode": "decode-filter | prefix-cache-scorer 2 | max-score-picker",
            "prefill": "prefill-filter | prefix-cache-scorer 2 | max-score-picker",
        },
        handler="pd-profile-handler",
        made=(DETECTOR, *DATA_LAYER, TOKENS),
        warnings=(
            (
                "plugins[0].type: type `prefill-header-handler` is deprecated; use"
                " `disagg-headers-handler`"
            ),
            (
                "plugins[1].type: type `pd-profile-handler` is deprecated; use"
                " `disagg-profile-handler`"
            ),
        ),
    ),
    "prefill/decode by prefix": Setup(
        text=f"""\
plugins:
- type: disagg-profile-handler
  parameters: {{deciders: {{prefill: prefix-based-pd-decider}}}}
- {DECIDER}
- {PREFIX_OF_4096}
- {{type: prefix-cache-scorer}}
- {{type: max-score-picker}}
- {{type: decode-filter}}
- {{type: prefill-filter}}
{DISAGGREGATED % {"both": ROLE_AND_PREFIX}}""",
        profiles={
            "decode": "decode-filter | prefix-cache-scorer 2 | max-score-picker",
            "prefill": "prefill-filter | prefix-cache-scorer 2 | max-score-picker",
        },
        handler="disagg-profile-handler",
        made=(DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "prefill/decode by topology": Setup(
        text=f"""\
plugins: [{{type: topology-extractor}}, {{type: topology-affinity-filter}}, {{type: queue-scorer}},
  {{type: topology-affinity-scorer}}, {{type: prefix-cache-scorer}}, {{type: max-score-picker}},
  {{type: prefill-filter}}, {{type: decode-filter}}, {PREFIX_OF_4096}, {DECIDER},
  {{type: disagg-profile-handler, parameters: {{deciders: {{prefill: prefix-based-pd-decider}}}}}}]
schedulingProfiles:
- name: decode
  plugins: [{{pluginRef: decode-filter}}, {ROLE_AND_PREFIX}, {{pluginRef: queue-scorer, weight: 1}}]
- name: prefill
  plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: topology-affinity-filter}},
    {ROLE_AND_PREFIX}, {{pluginRef: queue-scorer, weight: 1}},
    {{pluginRef: topology-affinity-scorer, weight: 1}}]
""",
        profiles={
            "decode": "decode-filter | prefix-cache-scorer 2, queue-scorer 1 | max-score-picker",
            "prefill": (
                "prefill-filter, topology-affinity-filter | prefix-cache-scorer 2, queue-scorer 1,"
                " topology-affinity-scorer 1 | max-score-picker"
            ),
        },
        handler="disagg-profile-handler",
        made=(DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "encode/prefill/decode": Setup(
        text=f"""\
plugins: [{{type: encode-filter}}, {{type: prefill-filter}}, {{type: decode-filter}}, {DECIDER},
  {{type: always-disagg-multimodal-decider}}, {{type: prefix-cache-scorer}},
  {{type: max-score-picker}}, {PREFIX_OF_4096},
  {{type: disagg-profile-handler, parameters: {{deciders:
    {{encode: always-disagg-multimodal-decider, prefill: prefix-based-pd-decider}}}}}}]
{DISAGGREGATED % {"both": ROLE_AND_PREFIX}}\
- {{name: encode, plugins: [{{pluginRef: encode-filter}}]}}
""",
        profiles={
            "decode": "decode-filter | prefix-cache-scorer 2 | max-score-picker",
            "prefill": "prefill-filter | prefix-cache-scorer 2 | max-score-picker",
            "encode": "encode-filter | | max-score-picker",
        },
        handler="disagg-profile-handler",
        made=(DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "encode and decode": Setup(
        text="""\
schedulingProfiles:
- {name: encode, plugins: [{pluginRef: encode-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
plugins: [{type: always-disagg-multimodal-decider}, {type: decode-filter}, {type: encode-filter},
  {type: disagg-profile-handler,
    parameters: {deciders: {encode: always-disagg-multimodal-decider}}}]
""",
        profiles={
            "encode": "encode-filter | | max-score-picker",
            "decode": "decode-filter | | max-score-picker",
        },
        handler="disagg-profile-handler",
        made=(PICKER, DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "decode only": Setup(
        text=f"""\
schedulingProfiles:
- {{name: decode, plugins: [{{pluginRef: decode-filter}}, {ROLE_AND_PREFIX}]}}
plugins: [{{type: disagg-profile-handler}}, {{type: encode-filter}}, {{type: prefill-filter}},
  {{type: decode-filter}}, {{type: max-score-picker}}, {{type: prefix-cache-scorer}},
  {PREFIX_OF_4096}]
""",
        profiles={"decode": "decode-filter | prefix-cache-scorer 2 | max-score-picker"},
        handler="disagg-profile-handler",
        made=(DETECTOR, *DATA_LAYER, TOKENS),
        warnings=(never_asked(1, "encode-filter"), never_asked(2, "prefill-filter")),
    ),
    "GPU utilization, attribute and producer in one": Setup(
        text=GPU
        % {"filter": "attribute: GPUUtilization/gpu", "scorer": "attributeKey: GPUUtilization/gpu"},
        profiles={"default": GPU_PROFILE},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER),
    ),
    "GPU utilization, attribute and producer apart": Setup(
        text=GPU
        % {
            "filter": "attribute: GPUUtilization, producer: gpu",
            "scorer": "attributeKey: GPUUtilization, producer: gpu",
        },
        profiles={"default": GPU_PROFILE},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER),
    ),
    "probabilistic admitter instead of a full pool": Setup(
        head=OLD_HEAD,
        text="""\
saturationDetector: {pluginRef: utilization-detector}
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
plugins:
- {type: random-picker, name: random-picker}
- type: utilization-detector
  name: utilization-detector
  parameters: {queueDepthThreshold: 999999999, kvCacheUtilThreshold: 1.0}
- {type: probabilistic-admitter, name: probabilistic-admitter}
""",
        profiles={"default": "| | random-picker"},
        made=(HANDLER, *DATA_LAYER),
        warnings=(OLD_API, OLD_DETECTOR),
    ),
    "session affinity as a filter": Setup(
        head=OLD_HEAD,
        text="""\
requestHandler: {parsers: [{pluginRef: openai-parser}]}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: session-affinity-filter}]}
plugins: [{type: session-affinity-filter}, {type: queue-scorer}, {type: openai-parser}]
""",
        profiles={"default": "session-affinity-filter | queue-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER),
        parsers=OPENAI,
        warnings=(OLD_API,),
    ),
    "session affinity as a scorer": Setup(
        text="""\
schedulingProfiles:
- name: default
  plugins: [{pluginRef: active-request-scorer, weight: 1},
    {pluginRef: session-affinity-scorer, weight: 1}]
plugins: [{type: session-affinity-scorer}, {type: active-request-scorer}]
""",
        profiles={
            "default": "| active-request-scorer 1, session-affinity-scorer 1 | max-score-picker"
        },
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, LOAD, TOKENS),
    ),
    "session affinity of both stages": Setup(
        text="""\
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}, {pluginRef: of-decode}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer}, {pluginRef: of-prefill}]
plugins:
- {type: queue-scorer}
- {type: decode-filter}
- {type: prefill-filter}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- {name: of-decode, type: session-affinity-filter}
- name: of-prefill
  type: session-affinity-filter
  parameters:
    {profileName: prefill, encodedEndpointHeaderConfig: {header: x-session-token-prefill}}
""",
        profiles={
            "decode": "decode-filter, of-decode | queue-scorer 1 | max-score-picker",
            "prefill": "prefill-filter, of-prefill | queue-scorer 1 | max-score-picker",
        },
        handler="disagg-profile-handler",
        made=(PICKER, DETECTOR, *DATA_LAYER),
    ),
    "session affinity by an id": Setup(
        text="""\
schedulingProfiles: [{name: default, plugins: [{pluginRef: session-affinity-scorer}]}]
plugins:
- {type: agent-identity}
- type: session-affinity-scorer
  parameters:
    strategy: session_id
    sessionIdConfig: {sources: [{header: x-session-id}, {attribute: agent-identity}]}
""",
        profiles={"default": "| session-affinity-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER),
    ),
    "context length, a scorer that filters": Setup(
        text="""\
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: context-length-aware, weight: 1},
    {pluginRef: prefix-cache-scorer, weight: 3}, {pluginRef: queue-scorer, weight: 2},
    {pluginRef: active-request-scorer, weight: 2}]
plugins:
- {type: disagg-headers-handler}
- {type: disagg-profile-handler, parameters: {deciderPluginName: always-disagg-pd-decider}}
- {type: always-disagg-pd-decider}
- {type: decode-filter}
- {type: prefill-filter}
- {type: active-request-scorer}
- {type: kv-cache-utilization-scorer}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: token-producer, parameters: {estimate: {}}}
- type: context-length-aware
  parameters: {label: llm-d.ai/context-length-range, enableFiltering: true}
""",
        profiles={
            "decode": "decode-filter | active-request-scorer 1 | max-score-picker",
            "prefill": (
                "prefill-filter, context-length-aware | context-length-aware 1,"
                " prefix-cache-scorer 3, queue-scorer 2, active-request-scorer 2"
                " | max-score-picker"
            ),
        },
        handler="disagg-profile-handler",
        made=(PICKER, DETECTOR, *DATA_LAYER, LOAD, PREFIX),
        warnings=(SETS_ITSELF, never_asked(6, "kv-cache-utilization-scorer")),
    ),
    "stages by a header": Setup(
        text="""\
schedulingProfiles:
- name: encode
  plugins: [{pluginRef: encode-filter}, {pluginRef: active-request-scorer}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-affinity-filter},
    {pluginRef: token-load-scorer}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]
plugins: [{type: header-profile-handler}, {type: active-request-scorer}, {type: token-load-scorer},
  {type: prefix-cache-affinity-filter}, {type: inflight-load-producer},
  {type: approx-prefix-cache-producer}, {type: decode-filter}, {type: prefill-filter},
  {type: encode-filter}, {type: max-score-picker}]
""",
        profiles={
            "encode": "encode-filter | active-request-scorer 1 | max-score-picker",
            "prefill": (
                "prefill-filter, prefix-cache-affinity-filter | token-load-scorer 1"
                " | max-score-picker"
            ),
            "decode": "decode-filter | active-request-scorer 1 | max-score-picker",
        },
        handler="header-profile-handler",
        made=(DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "labels by a header": Setup(
        text="""\
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: slice, weight: 3}, {pluginRef: zone, weight: 1}, {pluginRef: picker}]
plugins:
- {name: picker, type: weighted-random-picker}
- name: slice
  type: header-label-affinity-scorer
  parameters: {headerName: x-slice, labelKey: example.com/slice}
- name: zone
  type: header-label-affinity-scorer
  parameters: {headerName: x-zone, labelKey: topology.kubernetes.io/zone}
""",
        profiles={"decode": "| slice 3, zone 1 | picker"},
        made=(HANDLER, DETECTOR, *DATA_LAYER),
    ),
    "data parallel": Setup(
        text="""\
schedulingProfiles: [{name: default, plugins: [{pluginRef: decode-filter}]}]
plugins: [{type: data-parallel-profile-handler, parameters: {primaryPort: 8000}},
  {type: decode-filter}]
""",
        profiles={"default": "decode-filter | | max-score-picker"},
        handler="data-parallel-profile-handler",
        made=(PICKER, DETECTOR, *DATA_LAYER),
        warnings=(
            (
                "plugins[0].type: type `data-parallel-profile-handler` is deprecated; gateways can"
                " send to several ports of an address themselves"
            ),
        ),
    ),
    "limits of utilization": Setup(
        text="""\
schedulingProfiles:
- {name: default, plugins: [{pluginRef: utilization-filter}, {pluginRef: queue-scorer}]}
plugins:
- {type: queue-scorer}
- type: utilization-filter
  parameters: {fallbackOnEmpty: true, conditions: [{metric: waiting-queue, maxValue: 10},
    {metric: active-requests, maxValue: 64}]}
""",
        profiles={"default": "utilization-filter | queue-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, LOAD, TOKENS),
    ),
    "cold requests spread": Setup(
        text=f"""\
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: decode-filter}}, {ROLE_AND_PREFIX},
    {{pluginRef: no-hit-lru-scorer, weight: 1}}]
plugins: [{{type: no-hit-lru-scorer, parameters: {{lruSize: 2048}}}}, {{type: prefix-cache-scorer}},
  {{type: decode-filter}}, {{type: max-score-picker}}, {PREFIX_OF_4096}]
""",
        profiles={
            "default": (
                "decode-filter | prefix-cache-scorer 2, no-hit-lru-scorer 1 | max-score-picker"
            )
        },
        made=(HANDLER, DETECTOR, *DATA_LAYER, TOKENS),
    ),
    "LoRA": Setup(
        text="""\
schedulingProfiles:
- name: default
  plugins: [{pluginRef: lora-affinity-scorer, weight: 1}, {pluginRef: queue-scorer, weight: 1},
    {pluginRef: random-picker}]
plugins:
- {type: random-picker, parameters: {maxNumOfEndpoints: 2}}
- {type: queue-scorer}
- {type: lora-affinity-scorer}
""",
        profiles={"default": "| lora-affinity-scorer 1, queue-scorer 1 | random-picker"},
        made=(HANDLER, DETECTOR, *DATA_LAYER),
    ),
    "the chart's default for another engine": Setup(
        text="""\
requestHandler: {parsers: [{pluginRef: openai-parser}]}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: prefix-cache-scorer, weight: 3},
    {pluginRef: kv-cache-utilization-scorer, weight: 2}]
plugins:
- {type: openai-parser}
- {type: core-metrics-extractor, parameters: {defaultEngine: sglang}}
- type: metrics-data-source
  parameters: {scheme: "http", path: "/metrics", insecureSkipVerify: true}
- {type: prefix-cache-scorer}
- {type: kv-cache-utilization-scorer}
- {type: queue-scorer}
""",
        profiles={
            "default": (
                "| queue-scorer 2, prefix-cache-scorer 3, kv-cache-utilization-scorer 2"
                " | max-score-picker"
            )
        },
        made=(PICKER, HANDLER, DETECTOR, PREFIX, TOKENS),
        parsers=OPENAI,
    ),
    "in-flight requests for the detector, which filters as well": Setup(
        text="""\
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: concurrency-detector}, {pluginRef: queue-scorer}]}
plugins:
- type: concurrency-detector
  parameters: {maxConcurrency: 132, concurrencyMode: hybrid, headroom: 0.2}
- {type: queue-scorer}
""",
        profiles={"default": "concurrency-detector | queue-scorer 1 | max-score-picker"},
        detector="concurrency-detector",
        made=(PICKER, HANDLER, *DATA_LAYER, LOAD, TOKENS),
    ),
    "flow control": Setup(
        text="""\
featureGates: [flowControl]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  maxBytes: 10Gi
  maxRequests: 1k
  defaultRequestTTL: 60s
  priorityBands:
  - {priority: 100, maxRequests: "500", fairnessPolicyRef: round-robin-fairness-policy,
     orderingPolicyRef: fcfs-ordering-policy}
plugins: [{type: fcfs-ordering-policy}, {type: round-robin-fairness-policy},
  {type: queue-scorer}, {type: concurrency-detector, parameters: {maxConcurrency: 132}}]
""",
        profiles={"default": "| queue-scorer 1 | max-score-picker"},
        detector="concurrency-detector",
        made=(
            *(PICKER, HANDLER, *DATA_LAYER),
            *("static-usage-limit-policy", "global-strict-fairness-policy", LOAD, TOKENS),
        ),
    ),
    "flow control with nothing said of it": Setup(
        text="featureGates: [flowControl=true]\nplugins: [{type: queue-scorer}]\n",
        profiles={"default": "| queue-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, *POLICIES),
    ),
    "deprecated parameters and gates": Setup(
        text="""\
featureGates: ["flowControl= False", "haPopulateNonLeaderDatastore"]
plugins:
- {type: active-request-scorer, parameters: {requestTimeout: 2m}}
- {type: no-hit-lru-scorer, parameters: {lruSize: 512, prefixPluginType: prefix-cache-scorer,
    prefixPluginName: prefix-cache-scorer}}
- {type: approx-prefix-cache-producer, parameters: {blockSize: 64, maxPrefixBlocksToMatch: 256}}
parser: {pluginRef: openai-parser}
""",
        profiles={"default": "| active-request-scorer 1, no-hit-lru-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, LOAD, TOKENS),
        parsers=OPENAI,
        warnings=("parser: is deprecated; use `requestHandler.parsers`",),
    ),
    "requests of any format": Setup(
        text="""\
requestHandler: {parsers: [{pluginRef: passthrough-parser}]}
plugins: [{type: passthrough-parser}, {type: active-request-scorer}]
""",
        profiles={"default": "| active-request-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER, LOAD, TOKENS),
        parsers=("passthrough-parser",),
    ),
    "a newer apiVersion": Setup(
        head=HEAD.replace("v1alpha1", "v1"),
        text="plugins: [{type: queue-scorer}]\n",
        profiles={"default": "| queue-scorer 1 | max-score-picker"},
        made=(PICKER, HANDLER, DETECTOR, *DATA_LAYER),
    ),
    "defaults that a profile and a section name without an entry": Setup(
        text="""\
flowControl: {saturationDetector: {}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: utilization-detector}, {pluginRef: queue-scorer},
    {pluginRef: max-score-picker}]
plugins: [{type: queue-scorer}]
""",
        profiles={"default": "utilization-detector | queue-scorer 1 | max-score-picker"},
        made=(DETECTOR, PICKER, HANDLER, *DATA_LAYER),
    ),
}


def built(text: str) -> PluginGraph:
    return BUILDER.build(load_text(text, "f", inspect=BUILDER.registry.inspector(Path())))


def spelled(profile: SchedulerProfile) -> str:
    """Return filters | scorers with their weights | picker."""
    filters = ", ".join(each.name for each in profile.filters)
    scorers = ", ".join(f"{each.scorer.name} {each.weight:g}" for each in profile.scorers)
    return " ".join(f"{filters} | {scorers} | {profile.picker.name}".split())


def warnings_of(graph: PluginGraph) -> Sequence[str]:
    problems = (*graph.config.warnings, *graph.warnings)
    return [f"{each.path}: {each.message}" for each in problems]


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_setup_means_what_it_means_to_the_reference(setup: Setup) -> None:
    graph = built(setup.head + setup.text)
    profiles = graph.scheduler.profiles
    assert {name: spelled(each) for name, each in profiles.items()} == setup.profiles
    written = {entry.name for entry in graph.config.file.plugins}
    assert tuple(each.name for each in graph.parsers) == setup.parsers
    made = [name for name in graph.instances if name not in {*written, *setup.parsers}]
    assert made == list(setup.made)
    assert [graph.plugins[name].type for name in made] == made
    assert graph.scheduler.handler is graph.plugins[setup.handler]
    assert graph.detector is graph.plugins[setup.detector]
    assert warnings_of(graph) == list(setup.warnings)


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_setup_with_its_defaults_written_out_is_the_same(setup: Setup) -> None:
    graph = built(setup.head + setup.text)
    shown = built(msgspec.json.encode(graph.effective).decode())
    assert {name: each.type for name, each in shown.plugins.items()} == {
        name: each.type for name, each in graph.plugins.items()
    }
    assert shown.effective == graph.effective
    written = {entry.name for entry in shown.config.file.plugins}
    assert set(shown.instances) <= written


def not_yet(path: str, name: str) -> str:
    return f"{path}: plugin type `{name}` is not supported yet; remove what uses it"


REFUSALS = {
    "predicted latency": (
        """\
plugins:
- {type: predicted-latency-producer, parameters: {streamingMode: true}}
- {name: loose, type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.8}}
- {type: slo-headroom-tier-filter}
- {type: latency-scorer}
- {type: latency-slo-admitter}
- {type: weighted-random-picker}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: predicted-latency-producer}, {pluginRef: loose},
    {pluginRef: slo-headroom-tier-filter}, {pluginRef: latency-scorer},
    {pluginRef: weighted-random-picker}]
""",
        [
            not_yet("plugins[0].type", "predicted-latency-producer"),
            not_yet("plugins[2].type", "slo-headroom-tier-filter"),
            not_yet("plugins[3].type", "latency-scorer"),
        ],
    ),
    "precise prefix cache": (
        """\
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-producer}]
plugins:
- {type: endpoint-notification-source}
- {type: precise-prefix-cache-producer, parameters: {tokenProcessorConfig: {blockSize: 64}}}
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
""",
        [not_yet("plugins[1].type", "precise-prefix-cache-producer")],
    ),
    "what only newer releases have": (
        """\
plugins: [{type: models-responder}, {type: thunder-agent}, {type: outlen-bucket}]
""",
        [
            not_yet("plugins[0].type", "models-responder"),
            not_yet("plugins[1].type", "thunder-agent"),
            not_yet("plugins[2].type", "outlen-bucket"),
        ],
    ),
    "a producer that is not there, as in the reference": (
        """\
plugins:
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: mine}}
- {name: mine, type: queue-scorer}
- {name: other, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: none}}
""",
        [
            (
                "plugins[0]: `prefix-cache-scorer` reads `prefix-matches/mine`, which no plugin"
                " produces; if it is a producer's name that was misspelt, correct it"
            ),
            (
                "plugins[2]: `other` reads `prefix-matches/none`, which no plugin produces; if it"
                " is a producer's name that was misspelt, correct it"
            ),
        ],
    ),
    "a profile that names an unknown plugin, as in the reference": (
        """\
plugins: [{type: queue-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
""",
        [
            (
                "schedulingProfiles[0].plugins[0].pluginRef: no plugin is named `random-picker`;"
                " defined: `queue-scorer`"
            )
        ],
    ),
}


@pytest.mark.parametrize(("text", "want"), REFUSALS.values(), ids=REFUSALS)
def test_what_is_not_there_yet_is_refused_by_name(
    text: str, want: Sequence[str | re.Pattern[str]]
) -> None:
    with pytest.raises(ConfigError) as refused:
        built(HEAD + text)
    said = [f"{each.path}: {each.message}" for each in refused.value.problems]
    assert len(said) == len(want), said
    for text_said, wanted in zip(said, want, strict=True):
        if isinstance(wanted, str):
            assert text_said == wanted
        else:
            assert wanted.fullmatch(text_said)
