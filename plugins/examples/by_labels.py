"""``by-labels``: keeps the endpoints that have all of some labels.

Reads:  ``endpoint.labels``.
Example::

    plugins:
      - type: file:by_labels.py:ByLabels
        parameters: {labels: {role: prefill, gpu: h100}}
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``by-labels``."""

    labels: dict[str, str]
    """Values by label; an endpoint must have every one."""


class ByLabels(Filter):
    """Keeps the endpoints that have all of some labels."""

    type: ClassVar[str] = "by-labels"
    fails_open: ClassVar[bool] = False
    """If it raises, no endpoint passes: a request must not go to a server of the wrong role."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._labels = params.labels.items()

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [each for each in endpoints if self._labels <= each.labels.items()]
