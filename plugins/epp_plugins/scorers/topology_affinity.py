"""``topology-affinity-scorer``: prefers endpoints close to where the stage before runs.

For the second stage of a disaggregated request, such as the prefill of a decode that has been
placed. The tightest place that an endpoint and that peer both have, with the same value, gives its
score::

    host 1.0    rack 0.2    zone 0.05    region 0.02    none of them 0.0

All score 0 if there is no peer or its topology is not known. Same scores as llm-d-router
``topology-affinity-scorer``.

Reads:  ``PEER_ENDPOINT`` from the cycle state, written by the profile handler; ``TOPOLOGY`` off the
attributes of endpoints, written by ``topology-extractor``.
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
    """Extractor whose topology counts; "" for ``topology-extractor``."""


class TopologyAffinityScorer(Scorer):
    """Scores endpoints by how close they are to the one chosen for the stage before."""

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
