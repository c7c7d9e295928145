"""``multicluster-approx-prefix-cache-producer``, ``multicluster-prefix-cache-scorer``: prefixes.

They are ``approx-prefix-cache-producer`` and ``prefix-cache-scorer`` with the same parameters. An
endpoint is a cluster here: a prompt follows its prefix to a cluster, whose own EPP chooses the
model server.

The producer writes the matches under its own name. The scorer reads those of
``approx-prefix-cache-producer``, as the Go EPP's does, unless ``prefixMatchInfoProducerName``
names another. Metrics are labelled with the types of these plugins; the Go EPP's with
those of the plugins that they wrap. A cluster does not report the size of its cache: set
``lruCapacityPerServer`` to the blocks of all its servers.

Reads:  the same as ``approx-prefix-cache-producer`` and ``prefix-cache-scorer``.
Writes: ``PREFIX_MATCHES`` under the producer's own name.
Example::

    plugins:
      - type: multicluster-approx-prefix-cache-producer
        parameters: {lruCapacityPerServer: 500000}
      - type: multicluster-prefix-cache-scorer
        parameters:
          prefixMatchInfoProducerName: multicluster-approx-prefix-cache-producer
"""

from typing import Any, ClassVar

from epp.scheduling import StateKey
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer


class MulticlusterApproxPrefixCacheProducer(ApproxPrefixCacheProducer):
    """Records which prompt blocks were sent to which cluster."""

    type: ClassVar[str] = "multicluster-approx-prefix-cache-producer"
    default_for: ClassVar[tuple[StateKey[Any], ...]] = ()


class MulticlusterPrefixCacheScorer(PrefixCacheScorer):
    """Scores clusters by the share and the length of the cached prompt prefix."""

    type: ClassVar[str] = "multicluster-prefix-cache-scorer"
