"""Plugins shipped with the endpoint picker; ``PLUGINS`` lists them all."""

from epp.scheduling import Plugin
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.data_sources.core_metrics import CoreMetricsExtractor
from epp_plugins.data_sources.file_discovery import FileDiscovery
from epp_plugins.data_sources.http_sources import MetricsDataSource, ModelsDataSource
from epp_plugins.data_sources.models import ModelsDataExtractor
from epp_plugins.filters.by_label import ByLabelFilter
from epp_plugins.filters.decision_tree import DecisionTreeFilter
from epp_plugins.filters.decode import DecodeFilter
from epp_plugins.filters.encode import EncodeFilter
from epp_plugins.filters.has_capacity import HasCapacityFilter
from epp_plugins.filters.label_selector import LabelSelectorFilter
from epp_plugins.filters.least_kv_cache import LeastKvCacheFilter
from epp_plugins.filters.least_queue import LeastQueueFilter
from epp_plugins.filters.lora_affinity import LoraAffinityFilter
from epp_plugins.filters.low_queue import LowQueueFilter
from epp_plugins.filters.prefill import PrefillFilter
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.pickers.random_picker import RandomPicker
from epp_plugins.pickers.weighted_random import WeightedRandomPicker
from epp_plugins.profile_handlers.header_profile import HeaderProfileHandler
from epp_plugins.profile_handlers.single_profile import SingleProfileHandler
from epp_plugins.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from epp_plugins.scorers.lora_affinity import LoraAffinityScorer
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer
from epp_plugins.scorers.queue_depth import QueueScorer
from epp_plugins.scorers.running_requests import RunningRequestsScorer

PLUGINS: tuple[type[Plugin], ...] = (
    ApproxPrefixCacheProducer,
    ByLabelFilter,
    CoreMetricsExtractor,
    DecisionTreeFilter,
    DecodeFilter,
    EncodeFilter,
    FileDiscovery,
    HasCapacityFilter,
    HeaderProfileHandler,
    KvCacheUtilizationScorer,
    LabelSelectorFilter,
    LeastKvCacheFilter,
    LeastQueueFilter,
    LoraAffinityFilter,
    LoraAffinityScorer,
    LowQueueFilter,
    MaxScorePicker,
    MetricsDataSource,
    ModelsDataExtractor,
    ModelsDataSource,
    PrefillFilter,
    PrefixCacheScorer,
    QueueScorer,
    RandomPicker,
    RunningRequestsScorer,
    SingleProfileHandler,
    TokenProducer,
    WeightedRandomPicker,
)
