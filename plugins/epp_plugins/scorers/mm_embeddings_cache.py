"""``mm-embeddings-cache-scorer``: prefers endpoints that have already encoded the prompt's media.

    score = size of the media held / size of all media of the prompt

An endpoint that holds none of them scores 0; for a prompt without media all score 0. The producer
determines the size of each medium.

Reads:  ``ENCODER_MATCHES`` from the cycle state, written by ``mm-embeddings-cache-producer``, which
        is added if the configuration has none.
Example::

    plugins:
      - type: mm-embeddings-cache-scorer
      - type: queue-scorer
    schedulingProfiles:
      - name: default
        plugins:
          - {pluginRef: mm-embeddings-cache-scorer, weight: 4}
          - {pluginRef: queue-scorer, weight: 2}
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer, StateKey
from epp_plugins.state_keys import ENCODER_MATCHES, encoder_matches_of


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``mm-embeddings-cache-scorer``."""

    producer_name: str = ""
    """Producer of the matches; "" for ``mm-embeddings-cache-producer``."""


class MmEmbeddingsCacheScorer(Scorer):
    """Scores endpoints by the share of the prompt's media that they have encoded."""

    type: ClassVar[str] = "mm-embeddings-cache-scorer"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (ENCODER_MATCHES,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._matches = encoder_matches_of(params.producer_name)
        # Set per instance, unlike the keys of most plugins: it comes from a parameter.
        self.reads = (self._matches,)  # type: ignore[misc]

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        matches = state.read(self._matches)
        if matches is None or matches.total_size <= 0 or not matches.sizes:
            return [0.0] * len(endpoints)
        total, held = matches.total_size, matches.sizes.get
        return [min(1.0, max(0, held(endpoint.name, 0)) / total) for endpoint in endpoints]
