"""``multicluster-approx-prefix-cache-producer``, ``multicluster-prefix-cache-scorer`` and
``multicluster-session-affinity-filter``: affinity of prompts and sessions to clusters.

They are ``approx-prefix-cache-producer``, ``prefix-cache-scorer`` and ``session-affinity-filter``
with the same parameters. An endpoint is a
cluster here, so a prompt follows its prefix, and a session its cluster, and the cluster's own EPP
chooses the model server.

The producer writes the matches under its own name. The scorer reads those of
``approx-prefix-cache-producer``, as the reference's does, unless ``prefixMatchInfoProducerName``
names another. Metrics bear the types of these plugins; the reference's bear those of the plugins
that they wrap. An endpoint has no engine of its own to tell the size of its cache: give
``lruCapacityPerServer`` the blocks of a whole cluster.

Reads:  what the plugin of the other name reads.
Writes: likewise.
Example::

    plugins:
      - type: multicluster-session-affinity-filter
      - type: multicluster-approx-prefix-cache-producer
        parameters: {lruCapacityPerServer: 500000}
      - type: multicluster-prefix-cache-scorer
        parameters:
          prefixMatchInfoProducerName: multicluster-approx-prefix-cache-producer
"""

from typing import Any, ClassVar

from epp.scheduling import StateKey
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer
from epp_plugins.filters.session_affinity import SessionAffinityFilter
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer


class MulticlusterApproxPrefixCacheProducer(ApproxPrefixCacheProducer):
    """Remembers which prompt blocks were sent to which cluster."""

    type: ClassVar[str] = "multicluster-approx-prefix-cache-producer"
    default_for: ClassVar[tuple[StateKey[Any], ...]] = ()


class MulticlusterPrefixCacheScorer(PrefixCacheScorer):
    """Scores clusters by the share and the length of the cached prompt prefix."""

    type: ClassVar[str] = "multicluster-prefix-cache-scorer"


class MulticlusterSessionAffinityFilter(SessionAffinityFilter):
    """Keeps the cluster that the request's session is bound to, if it is a candidate."""

    type: ClassVar[str] = "multicluster-session-affinity-filter"
