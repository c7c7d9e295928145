"""The extension points of the data layer: where endpoints come from, who hears of their coming."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from epp.data_layer.errors import DiscoveryError, DuplicateEndpointError
from epp.scheduling import Endpoint, Plugin

__all__ = [
    "DiscoveryError",
    "DuplicateEndpointError",
    "EndpointDiscovery",
    "EndpointListener",
    "EndpointSink",
    "EndpointSpec",
]


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """An endpoint as discovery sees it."""

    name: str
    """``namespace/name``, unique in the pool."""
    address: str
    """``ip:port``, an IPv6 address in brackets."""
    labels: Mapping[str, str] = field(default_factory=dict)


class EndpointSink(Protocol):
    """Takes what a discovery found."""

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        """Make ``specs`` the whole of what ``source`` knows; what is unchanged stays as it is.

        Raises:
            DuplicateEndpointError: Two specs, or another source's, have the same name.
        """


class EndpointDiscovery(Plugin):
    """Finds endpoints and follows their changes."""

    @abstractmethod
    async def run(self, sink: EndpointSink) -> None:
        """Report the endpoints to ``sink``, then every change, until cancelled.

        Raises:
            DiscoveryError: The first look failed; later failures are logged and the last good
                state stays.
        """


class EndpointListener(Plugin):
    """Hears of endpoints that come and go."""

    @abstractmethod
    def endpoint_added(self, endpoint: Endpoint) -> None:
        """``endpoint`` is in the pool from now on."""

    @abstractmethod
    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """``endpoint`` has left the pool; requests in flight there may still end."""
