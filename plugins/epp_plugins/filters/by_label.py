"""``by-label``: keeps endpoints by the value of one label.

An endpoint is kept if its ``label`` has one of ``validValues``, or if it lacks the label and
``allowsNoLabel`` is true or ``validValues`` contains "". The Go EPP has deprecated this filter in
favour of ``label-selector-filter``, which however cannot express "this value or no label".

Reads:  ``endpoint.labels``.
Example::

    plugins:
      - type: by-label
        parameters: {label: tier, validValues: [gold, silver], allowsNoLabel: true}
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``by-label``."""

    label: str
    """Name of the label."""
    valid_values: tuple[str, ...] = ()
    """Values of the label with which an endpoint is kept."""
    allows_no_label: bool = False
    """Whether endpoints without the label are kept, too."""

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("label is empty; name the label to look at")
        if not self.valid_values and not self.allows_no_label:
            raise ValueError("validValues is empty and allowsNoLabel false: nothing could pass")


class ByLabelFilter(Filter):
    """Keeps the endpoints whose label has one of the valid values."""

    type: ClassVar[str] = "by-label"
    recomputable = True
    fails_open: ClassVar[bool] = False

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._label = params.label
        # labels.get() returns None for an absent label, which "" matches, too, as in the Go EPP.
        absent = (None,) if params.allows_no_label or "" in params.valid_values else ()
        self._valid: frozenset[str | None] = frozenset((*params.valid_values, *absent))

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        label, valid = self._label, self._valid
        return [endpoint for endpoint in endpoints if endpoint.labels.get(label) in valid]
