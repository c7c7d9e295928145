"""Plugins shipped with the endpoint picker; ``PLUGINS`` lists them all."""

from epp.scheduling import Plugin
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.data_sources.file_discovery import FileDiscovery
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.pickers.random_picker import RandomPicker
from epp_plugins.profile_handlers.single_profile import SingleProfileHandler
from epp_plugins.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from epp_plugins.scorers.lora_affinity import LoraAffinityScorer
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer
from epp_plugins.scorers.queue_depth import QueueScorer
from epp_plugins.scorers.running_requests import RunningRequestsScorer

PLUGINS: tuple[type[Plugin], ...] = (
    ApproxPrefixCacheProducer,
    FileDiscovery,
    KvCacheUtilizationScorer,
    LoraAffinityScorer,
    MaxScorePicker,
    PrefixCacheScorer,
    QueueScorer,
    RandomPicker,
    RunningRequestsScorer,
    SingleProfileHandler,
    TokenProducer,
)
