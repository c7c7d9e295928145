"""``label-selector-filter``: keeps endpoints whose labels match a Kubernetes label selector.

The parameters have the form of a Kubernetes label selector: all ``matchLabels`` and all
``matchExpressions`` must hold; an empty selector keeps every endpoint. ``In`` and ``Exists``
require the label; ``NotIn`` and ``DoesNotExist`` also match endpoints without it.
``by-label-selector`` is a deprecated name of this type.

Reads:  ``endpoint.labels``.
Example::

    plugins:
      - type: label-selector-filter
        parameters:
          matchLabels: {llm-d.ai/role: decode}
          matchExpressions:
            - {key: zone, operator: NotIn, values: [eu-west-1c]}
"""

from collections.abc import Sequence
from typing import ClassVar

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest
from epp_plugins.label_selectors import LabelSelector, matcher_of


class Params(LabelSelector, frozen=True):
    """Parameters of ``label-selector-filter``: a label selector."""


class LabelSelectorFilter(Filter):
    """Keeps the endpoints that a label selector matches."""

    type: ClassVar[str] = "label-selector-filter"
    recomputable = True
    fails_open: ClassVar[bool] = False

    def __init__(self, name: str, params: Params) -> None:
        if not name:
            raise ValueError(f"a {self.type} needs a name")
        self.name = name
        self._matches = matcher_of(params)

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        matches = self._matches
        return [endpoint for endpoint in endpoints if matches(endpoint.labels)]
