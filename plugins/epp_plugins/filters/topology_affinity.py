"""``topology-affinity-filter``: keeps endpoints close to the endpoint of the previous stage.

It is for the second stage of a disaggregated request, such as the prefill after the decode server
(the peer) has been chosen. An endpoint is kept if it shares the level ``minAffinity``, or a
narrower one, with the peer. From narrow to wide, the levels are ``host``, ``rack``, ``zone`` and
``region``; the narrowest level at which both have the same value counts. A missing level is never
shared.

All endpoints are kept if there is no peer, if its topology is unknown, or if none is close enough,
so the filter never fails a request. Same rules as llm-d-router ``topology-affinity-filter``.

Reads:  ``PEER_ENDPOINT`` from the cycle state, written by the profile handler; the endpoint
attribute ``TOPOLOGY``, written by ``topology-extractor``.
Example::

    plugins:
      - type: topology-extractor
      - type: topology-affinity-filter
        parameters: {minAffinity: zone}
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, Filter, LLMRequest, StateKey
from epp_plugins.state_keys import PEER_ENDPOINT, topology_of
from epp_plugins.topology import Closeness, closeness_to


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``topology-affinity-filter``."""

    min_affinity: Annotated[
        Literal["host", "rack", "zone", "region"], msgspec.Meta(extra={"empty_is_absent": True})
    ] = "host"
    """Widest level that an endpoint must share with the peer."""
    topology_producer_name: str = ""
    """Extractor of the topology; "" for ``topology-extractor``."""


class TopologyAffinityFilter(Filter):
    """Keeps the endpoints that are close enough to that of the previous stage."""

    type: ClassVar[str] = "topology-affinity-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._least = Closeness[params.min_affinity.upper()]
        self._key = topology_of(params.topology_producer_name)
        self.optional_reads: tuple[StateKey[Any] | AttributeKey[Any], ...] = (
            PEER_ENDPOINT,
            self._key,
        )

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        peer = state.read(PEER_ENDPOINT)
        topology = None if peer is None else peer.attribute(self._key)
        if topology is None:
            return list(endpoints)
        least = self._least
        close = [
            endpoint
            for endpoint, found in zip(
                endpoints, closeness_to(topology, endpoints, self._key), strict=True
            )
            if found >= least
        ]
        return close or list(endpoints)
