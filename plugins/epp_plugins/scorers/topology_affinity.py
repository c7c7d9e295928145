"""``topology-affinity-scorer``: prefers endpoints close to the endpoint of the previous stage.

It is for the second stage of a disaggregated request, such as the prefill after the decode server
(the peer) has been chosen. The score depends on the narrowest level at which the endpoint and the
peer have the same value::

    host 1.0    rack 0.2    zone 0.05    region 0.02    none of them 0.0

All score 0 if there is no peer or its topology is unknown. Same scores as llm-d-router
``topology-affinity-scorer``.

Reads:  ``PEER_ENDPOINT`` from the cycle state, written by the profile handler; the endpoint
attribute ``TOPOLOGY``, written by ``topology-extractor``.
Example::

    plugins:
      - type: topology-extractor
      - type: topology-affinity-scorer
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, LLMRequest, Scorer, StateKey
from epp_plugins.state_keys import PEER_ENDPOINT, topology_of
from epp_plugins.topology import CLOSENESS_SCORES, closeness_to


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``topology-affinity-scorer``."""

    topology_producer_name: str = ""
    """Extractor of the topology; "" for ``topology-extractor``."""


class TopologyAffinityScorer(Scorer):
    """Scores endpoints by their distance from that of the previous stage."""

    type: ClassVar[str] = "topology-affinity-scorer"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._key = topology_of(params.topology_producer_name)
        self.optional_reads: tuple[StateKey[Any] | AttributeKey[Any], ...] = (
            PEER_ENDPOINT,
            self._key,
        )

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        peer = state.read(PEER_ENDPOINT)
        topology = None if peer is None else peer.attribute(self._key)
        if topology is None:
            return [0.0] * len(endpoints)
        return [CLOSENESS_SCORES[found] for found in closeness_to(topology, endpoints, self._key)]
