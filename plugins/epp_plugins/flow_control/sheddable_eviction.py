"""``sheddable-eviction-filter``: allows eviction of requests with a negative priority.

This is the default with ``flowControl.enableEviction`` and without ``filterPluginRef``; it needs no
entry in ``plugins``.

Example::

    plugins:
      - type: sheddable-eviction-filter
    flowControl: {enableEviction: true}
    extensions:
      flowControl:
        eviction: {filterPluginRef: sheddable-eviction-filter}
"""

from typing import ClassVar

import msgspec

from epp.flow_control.plugins import EvictionFilter
from epp.scheduling import LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``sheddable-eviction-filter`` has no parameters."""


class SheddableEvictionFilter(EvictionFilter):
    """Accepts sheddable requests for eviction."""

    type: ClassVar[str] = "sheddable-eviction-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def accepts(self, request: LLMRequest) -> bool:
        return request.priority < 0
