"""``header-label-affinity-scorer``: prefers endpoints whose label matches a request header.

An endpoint scores 1 if its label ``labelKey`` has the same value as the request header
``headerName``, else 0. Without the header, or if it is empty, all score 0. For several pairs of
header and label, configure several instances of this scorer, each with its own weight. Same scores
as llm-d-router ``header-label-affinity-scorer``.

Reads:  the header ``headerName``, ``endpoint.labels``.
Example::

    plugins:
      - type: header-label-affinity-scorer
        name: zone-affinity
        parameters: {headerName: x-preferred-zone, labelKey: topology.kubernetes.io/zone}
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``header-label-affinity-scorer``."""

    header_name: Annotated[str, msgspec.Meta(min_length=1)]
    """Request header with the wanted value; case-insensitive."""
    label_key: Annotated[str, msgspec.Meta(min_length=1)]
    """Label of endpoints that is compared with the header."""


class HeaderLabelAffinityScorer(Scorer):
    """Scores 1 where a label of the endpoint equals a header of the request."""

    type: ClassVar[str] = "header-label-affinity-scorer"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._header = params.header_name.lower()
        self._label = params.label_key

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        wanted = request.headers.get(self._header)
        if not wanted:
            return [0.0] * len(endpoints)
        label = self._label
        return [1.0 if endpoint.labels.get(label) == wanted else 0.0 for endpoint in endpoints]
