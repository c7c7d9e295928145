"""``sheddable-eviction-filter``: requests of a negative priority may be evicted.

This is who may be evicted where ``flowControl.enableEviction`` is on and no ``filterPluginRef``
names another; it needs no entry in ``plugins``.

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
    """Lets requests be evicted that may be shed anyway."""

    type: ClassVar[str] = "sheddable-eviction-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def accepts(self, request: LLMRequest) -> bool:
        return request.priority < 0
