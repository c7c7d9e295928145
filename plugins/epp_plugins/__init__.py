"""Plugins shipped with the endpoint picker; ``PLUGINS`` lists them all."""

from epp.scheduling import Plugin
from epp_plugins.admitters.latency_slo import LatencySloAdmitter
from epp_plugins.admitters.probabilistic import ProbabilisticAdmitter
from epp_plugins.data_producers.agent_identity import AgentIdentity
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer
from epp_plugins.data_producers.burst_prefix_cache import BurstPrefixCacheProducer
from epp_plugins.data_producers.inflight_load import InflightLoadProducer
from epp_plugins.data_producers.mm_embeddings_cache import MmEmbeddingsCacheProducer
from epp_plugins.data_producers.predicted_time import PredictedTimeProducer
from epp_plugins.data_producers.session_id import SessionIdProducer
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.data_sources.core_metrics import CoreMetricsExtractor
from epp_plugins.data_sources.dcgm import DcgmDataSource
from epp_plugins.data_sources.dcgm_extractor import DcgmExtractor
from epp_plugins.data_sources.dns_discovery import DnsDiscovery
from epp_plugins.data_sources.endpoint_notifications import EndpointNotificationSource
from epp_plugins.data_sources.file_discovery import FileDiscovery
from epp_plugins.data_sources.http_sources import MetricsDataSource, ModelsDataSource
from epp_plugins.data_sources.k8s_notifications import K8sNotificationSource
from epp_plugins.data_sources.models import ModelsDataExtractor
from epp_plugins.data_sources.orca_load_metrics import OrcaLoadMetricsReader
from epp_plugins.data_sources.topology import TopologyExtractor
from epp_plugins.deciders.always_disagg_multimodal import AlwaysDisaggMultimodalDecider
from epp_plugins.deciders.always_disagg_pd import AlwaysDisaggPdDecider
from epp_plugins.deciders.prefix_based_pd import PrefixBasedPdDecider
from epp_plugins.filters.by_label import ByLabelFilter
from epp_plugins.filters.decision_tree import DecisionTreeFilter
from epp_plugins.filters.decode import DecodeFilter
from epp_plugins.filters.encode import EncodeFilter
from epp_plugins.filters.endpoint_attribute import EndpointAttributeFilter
from epp_plugins.filters.has_capacity import HasCapacityFilter
from epp_plugins.filters.header_based_testing import HeaderBasedTestingFilter
from epp_plugins.filters.label_selector import LabelSelectorFilter
from epp_plugins.filters.least_kv_cache import LeastKvCacheFilter
from epp_plugins.filters.least_queue import LeastQueueFilter
from epp_plugins.filters.lora_affinity import LoraAffinityFilter
from epp_plugins.filters.low_queue import LowQueueFilter
from epp_plugins.filters.predicted_time_room import PredictedTimeRoomFilter
from epp_plugins.filters.prefill import PrefillFilter
from epp_plugins.filters.prefix_cache_affinity import PrefixCacheAffinityFilter
from epp_plugins.filters.session_affinity import SessionAffinityFilter
from epp_plugins.filters.topology_affinity import TopologyAffinityFilter
from epp_plugins.filters.utilization import UtilizationFilter
from epp_plugins.flow_control.edf_ordering import EdfOrderingPolicy
from epp_plugins.flow_control.fcfs_ordering import FcfsOrderingPolicy
from epp_plugins.flow_control.global_strict_fairness import GlobalStrictFairnessPolicy
from epp_plugins.flow_control.predicted_time_ordering import PredictedTimeOrderingPolicy
from epp_plugins.flow_control.priority_holdback import PriorityHoldbackPolicy
from epp_plugins.flow_control.priority_then_time_eviction import (
    PriorityThenTimeEvictionOrder,
)
from epp_plugins.flow_control.program_aware_fairness import ProgramAwareFairness
from epp_plugins.flow_control.proportion import ProportionFairnessPolicy
from epp_plugins.flow_control.round_robin_fairness import RoundRobinFairnessPolicy
from epp_plugins.flow_control.sheddable_eviction import SheddableEvictionFilter
from epp_plugins.flow_control.slo_deadline_ordering import SloDeadlineOrderingPolicy
from epp_plugins.flow_control.soft_reflective_ceiling import SoftReflectiveCeilingPolicy
from epp_plugins.flow_control.static_usage_limit import StaticUsageLimitPolicy
from epp_plugins.multicluster.discovery import MulticlusterFileDiscovery
from epp_plugins.multicluster.load_scorers import (
    MulticlusterKvCacheUtilizationScorer,
    MulticlusterQueueScorer,
)
from epp_plugins.multicluster.metrics import (
    MulticlusterMetricsDataSource,
    MulticlusterMetricsExtractor,
)
from epp_plugins.multicluster.prefix_cache import (
    MulticlusterApproxPrefixCacheProducer,
    MulticlusterPrefixCacheScorer,
)
from epp_plugins.multicluster.session_affinity import MulticlusterSessionAffinityFilter
from epp_plugins.parsers.anthropic import AnthropicParser
from epp_plugins.parsers.openai import OpenAiParser
from epp_plugins.parsers.passthrough import PassthroughParser
from epp_plugins.parsers.sglang_http import SglangHttpParser
from epp_plugins.parsers.vertexai import VertexAiParser
from epp_plugins.parsers.vllm_grpc import VllmGrpcParser
from epp_plugins.parsers.vllm_http import VllmHttpParser
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.pickers.random_picker import RandomPicker
from epp_plugins.pickers.weighted_random import WeightedRandomPicker
from epp_plugins.profile_handlers.data_parallel_profile import DataParallelProfileHandler
from epp_plugins.profile_handlers.disagg_headers import DisaggHeadersHandler
from epp_plugins.profile_handlers.disagg_profile import DisaggProfileHandler
from epp_plugins.profile_handlers.dp_rank_header import DpRankHeaderHandler
from epp_plugins.profile_handlers.header_profile import HeaderProfileHandler
from epp_plugins.profile_handlers.pd_profile import PdProfileHandler
from epp_plugins.profile_handlers.single_profile import SingleProfileHandler
from epp_plugins.reporters.destination_endpoint_served import DestinationEndpointServedVerifier
from epp_plugins.reporters.request_attributes import RequestAttributeReporter
from epp_plugins.saturation_detectors.concurrency import ConcurrencyDetector
from epp_plugins.saturation_detectors.predicted_time import PredictedTimeDetector
from epp_plugins.saturation_detectors.utilization import UtilizationDetector
from epp_plugins.scorers.active_request import ActiveRequestScorer
from epp_plugins.scorers.context_length import ContextLengthAware
from epp_plugins.scorers.endpoint_attribute import EndpointAttributeScorer
from epp_plugins.scorers.header_label_affinity import HeaderLabelAffinityScorer
from epp_plugins.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from epp_plugins.scorers.load_aware import LoadAwareScorer
from epp_plugins.scorers.lora_affinity import LoraAffinityScorer
from epp_plugins.scorers.mm_embeddings_cache import MmEmbeddingsCacheScorer
from epp_plugins.scorers.no_hit_lru import NoHitLruScorer
from epp_plugins.scorers.predicted_time import PredictedTimeScorer
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer
from epp_plugins.scorers.queue_depth import QueueScorer
from epp_plugins.scorers.running_requests import RunningRequestsScorer
from epp_plugins.scorers.session_affinity import SessionAffinityScorer
from epp_plugins.scorers.token_load import TokenLoadScorer
from epp_plugins.scorers.topology_affinity import TopologyAffinityScorer
from epp_plugins.screeners.disaggregatedset_rollout import DisaggregatedSetRolloutScreener

PLUGINS: tuple[type[Plugin], ...] = (
    ActiveRequestScorer,
    AgentIdentity,
    AlwaysDisaggMultimodalDecider,
    AlwaysDisaggPdDecider,
    AnthropicParser,
    ApproxPrefixCacheProducer,
    BurstPrefixCacheProducer,
    ByLabelFilter,
    ConcurrencyDetector,
    ContextLengthAware,
    CoreMetricsExtractor,
    DataParallelProfileHandler,
    DcgmDataSource,
    DcgmExtractor,
    DecisionTreeFilter,
    DecodeFilter,
    DestinationEndpointServedVerifier,
    DisaggHeadersHandler,
    DisaggProfileHandler,
    DisaggregatedSetRolloutScreener,
    DnsDiscovery,
    DpRankHeaderHandler,
    EdfOrderingPolicy,
    EncodeFilter,
    EndpointAttributeFilter,
    EndpointAttributeScorer,
    EndpointNotificationSource,
    FcfsOrderingPolicy,
    FileDiscovery,
    GlobalStrictFairnessPolicy,
    HasCapacityFilter,
    HeaderBasedTestingFilter,
    HeaderLabelAffinityScorer,
    HeaderProfileHandler,
    InflightLoadProducer,
    K8sNotificationSource,
    KvCacheUtilizationScorer,
    LabelSelectorFilter,
    LatencySloAdmitter,
    LeastKvCacheFilter,
    LeastQueueFilter,
    LoadAwareScorer,
    LoraAffinityFilter,
    LoraAffinityScorer,
    LowQueueFilter,
    MaxScorePicker,
    MetricsDataSource,
    MmEmbeddingsCacheProducer,
    MmEmbeddingsCacheScorer,
    ModelsDataExtractor,
    ModelsDataSource,
    MulticlusterApproxPrefixCacheProducer,
    MulticlusterFileDiscovery,
    MulticlusterKvCacheUtilizationScorer,
    MulticlusterMetricsDataSource,
    MulticlusterMetricsExtractor,
    MulticlusterPrefixCacheScorer,
    MulticlusterQueueScorer,
    MulticlusterSessionAffinityFilter,
    NoHitLruScorer,
    OpenAiParser,
    OrcaLoadMetricsReader,
    PassthroughParser,
    PdProfileHandler,
    PredictedTimeDetector,
    PredictedTimeOrderingPolicy,
    PredictedTimeProducer,
    PredictedTimeRoomFilter,
    PredictedTimeScorer,
    PrefillFilter,
    PrefixBasedPdDecider,
    PrefixCacheAffinityFilter,
    PrefixCacheScorer,
    PriorityHoldbackPolicy,
    PriorityThenTimeEvictionOrder,
    ProbabilisticAdmitter,
    ProgramAwareFairness,
    ProportionFairnessPolicy,
    QueueScorer,
    RandomPicker,
    RequestAttributeReporter,
    RoundRobinFairnessPolicy,
    RunningRequestsScorer,
    SessionAffinityFilter,
    SessionAffinityScorer,
    SessionIdProducer,
    SglangHttpParser,
    SheddableEvictionFilter,
    SingleProfileHandler,
    SloDeadlineOrderingPolicy,
    SoftReflectiveCeilingPolicy,
    StaticUsageLimitPolicy,
    TokenLoadScorer,
    TokenProducer,
    TopologyAffinityFilter,
    TopologyAffinityScorer,
    TopologyExtractor,
    UtilizationDetector,
    UtilizationFilter,
    VertexAiParser,
    VllmGrpcParser,
    VllmHttpParser,
    WeightedRandomPicker,
)
