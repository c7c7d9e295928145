"""``endpoint-notification-source``: tells its extractors of endpoints that come, change and go.

Its extractors are plugins that hear of endpoints (``EndpointListener``). Each is told of every
endpoint of the pool when it starts, and then of every change: an endpoint that joins, one whose
labels change, one that leaves. An endpoint with another address under the same name leaves and
joins. It asks the endpoints nothing.

Listing a plugin here is what the reference needs for some plugins; here every such plugin is told
anyway, once, whether it is listed or not. The reference says nothing of a plugin that two such
sources list: here it hears from the first.

Example::

    plugins:
      - type: endpoint-notification-source
      - type: topology-extractor
    dataLayer:
      sources:
        - pluginRef: endpoint-notification-source
          extractors:
            - pluginRef: topology-extractor
"""

from typing import ClassVar

import msgspec

from epp.data_layer.plugins import EndpointEvent, EndpointSource


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``endpoint-notification-source``: none."""


class EndpointNotificationSource(EndpointSource):
    """Passes every change of the pool on."""

    type: ClassVar[str] = "endpoint-notification-source"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def notify(self, event: EndpointEvent) -> EndpointEvent:
        return event
