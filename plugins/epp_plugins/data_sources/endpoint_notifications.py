"""``endpoint-notification-source``: notifies its extractors of changes of the pool.

Its extractors are ``EndpointListener`` plugins. Each is notified of every endpoint of the pool at
start-up, and then of every change: an endpoint joins, its labels change, or it leaves. If the
address of a name changes, the endpoint leaves and joins. The source does not contact the endpoints.

The Go EPP requires some plugins to be listed as extractors; here every such plugin is notified
once per change, listed or not. The Go EPP does not specify a plugin that two such sources list:
here the first source notifies it.

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
    """Passes every change of the pool to its extractors."""

    type: ClassVar[str] = "endpoint-notification-source"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def notify(self, event: EndpointEvent) -> EndpointEvent:
        return event
