"""The extension points of the data layer.

Where endpoints come from, who hears of their coming, what each is asked, and what is read out of
the answers.
"""

import ssl
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

from epp.config.quantities import duration_seconds
from epp.data_layer.address import join_address, split_address
from epp.data_layer.errors import (
    CallerBusyError,
    DiscoveryError,
    DuplicateEndpointError,
    PageError,
    PageTooLargeError,
    ScrapeConnectError,
    ScrapeError,
    ScrapeStatusError,
)
from epp.data_layer.files import FileState, UnreadableFileError, look, read
from epp.scheduling import AttributeKey, Endpoint, Plugin

__all__ = [
    "SERVED_MODELS",
    "CallerBusyError",
    "CostlyClient",
    "DataSource",
    "DiscoveryError",
    "DuplicateEndpointError",
    "EndpointChange",
    "EndpointDiscovery",
    "EndpointEvent",
    "EndpointListener",
    "EndpointSink",
    "EndpointSource",
    "EndpointSpec",
    "Extractor",
    "FileState",
    "GrpcCaller",
    "HttpCaller",
    "OpenCaller",
    "OpenGrpcCaller",
    "OpenPage",
    "Page",
    "PageClient",
    "PageError",
    "PageTooLargeError",
    "ScrapeConnectError",
    "ScrapeError",
    "ScrapeStatusError",
    "UnreadableFileError",
    "duration_seconds",
    "join_address",
    "look",
    "read",
    "split_address",
]


SERVED_MODELS: Final = AttributeKey[frozenset[str]]("served-models")
"""Names that an endpoint serves models and adapters under, from an extractor that knows. Metrics
count requests for these under their names whatever else clients ask for."""


@dataclass(frozen=True, slots=True)
class Page:
    """What an endpoint answered."""

    body: bytes
    requested_at: float
    """When the GET was sent, in seconds of the clock that reservations use."""


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
    """Hears of endpoints that come, change and go."""

    @abstractmethod
    def endpoint_added(self, endpoint: Endpoint) -> None:
        """``endpoint`` is in the pool from now on."""

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        """``endpoint`` has other labels than before; it has been added and not yet removed."""

    @abstractmethod
    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """``endpoint`` has left the pool; requests in flight there may still end."""


class EndpointChange(Enum):
    """What happened to an endpoint of the pool."""

    ADDED = "added"
    CHANGED = "changed"
    """It has other labels than before."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class EndpointEvent:
    """A change of the pool."""

    change: EndpointChange
    endpoint: Endpoint


class EndpointSource(Plugin):
    """Passes changes of the pool on to the listeners that are its extractors.

    A listener that no source lists is told of every change all the same, by the pool itself. Of
    several sources that list a listener, the first one counts.
    """

    @abstractmethod
    def notify(self, event: EndpointEvent) -> EndpointEvent | None:
        """Return what the extractors are told of ``event``: itself, another one, or None."""


class PageClient(Protocol):
    """Gets one page from one endpoint, again and again, over a connection that it keeps."""

    async def get(self) -> Page:
        """Return the page as it is now.

        Raises:
            ScrapeError: There is none.
        """

    def close(self) -> None:
        """Give up the connection; idempotent."""


@runtime_checkable
class CostlyClient(Protocol):
    """A client that knows what its pages cost to receive; costly pages are scraped less often.

    The cost of reading them is known without it.
    """

    @property
    def spent_seconds(self) -> float:
        """CPU time that receiving has taken on the event loop so far."""


class OpenPage(Protocol):
    """Makes clients for HTTP pages: the service ``open_page`` of a source's constructor."""

    def __call__(self, address: str, path: str, tls: ssl.SSLContext | None = None, /) -> PageClient:
        """Return a client for ``path`` at ``ip:port``; over TLS if there is a context."""


class HttpCaller(Protocol):
    """POSTs JSON to one HTTP server, over connections that it keeps."""

    async def post(self, path: str, body: bytes, *, max_answer_bytes: int) -> bytes:
        """Return the body of the answer; a call may be made twice.

        Raises:
            ScrapeError: There is none, or it is longer than that; a CallerBusyError if so many
                calls are waiting that this one was not made.
        """

    def close(self) -> None:
        """Close the connections; idempotent."""


class OpenCaller(Protocol):
    """Makes clients for calls: the service ``open_caller`` of a plugin's constructor."""

    def __call__(
        self,
        address: str,
        tls: ssl.SSLContext | None = None,
        /,
        *,
        max_connections: int,
        max_waiting: int,
    ) -> HttpCaller:
        """Return a client for ``host:port``; it connects when first used.

        Args:
            address: Where to; a host name is looked up at each connect.
            tls: For https.
            max_connections: Calls under way at once.
            max_waiting: Calls that may wait for one of them to end.
        """


class GrpcCaller(Protocol):
    """Makes unary gRPC calls to one server, bytes to bytes."""

    async def call(self, method: str, message: bytes) -> bytes:
        """Return the answer to ``message``; ``method`` is ``/package.Service/Method``.

        Raises:
            ScrapeError: There is none; a CallerBusyError if so many calls are waiting that this one
                was not made.
        """

    def close(self) -> None:
        """Close the connection; idempotent."""


class OpenGrpcCaller(Protocol):
    """Makes clients for gRPC: the service ``open_grpc_caller`` of a plugin's constructor."""

    def __call__(
        self, target: str, /, *, max_calls: int, max_waiting: int, max_answer_bytes: int
    ) -> GrpcCaller:
        """Return a client for ``unix:PATH`` or ``host:port``; it connects when first used.

        Args:
            target: Where to.
            max_calls: Calls under way at once.
            max_waiting: Calls that may wait for one of them to end.
            max_answer_bytes: Longest answer.
        """


class DataSource(Plugin):
    """Says what to ask each endpoint for, and how often.

    Attributes:
        interval_seconds: Time between the starts of two questions to one endpoint, at least 0.05;
            0 for the process's own interval (``--refresh-metrics-interval``).
    """

    interval_seconds: float = 0.0

    @abstractmethod
    def open(self, endpoint: Endpoint) -> PageClient:
        """Return a client that asks ``endpoint`` for it; it connects when first used."""


class Extractor(Plugin):
    """Reads values out of the pages of a source and writes them to the endpoint.

    Attributes:
        writes: Attributes it writes; empty for one that writes ``endpoint.metrics``. A reload that
            drops the last extractor of an attribute takes it off all endpoints.
    """

    writes: ClassVar[tuple[AttributeKey[Any], ...]] = ()

    @abstractmethod
    def extract(self, endpoint: Endpoint, page: Page) -> None:
        """Write what ``page`` says to ``endpoint.metrics`` or ``endpoint.attributes``.

        Synchronous, as it runs on the event loop. A page has at most ``--max-scrape-page-bytes``
        (8 MiB); of one that may be long read a part at a time, in :meth:`steps`. Metrics without
        ``requested_at`` get the page's.

        Raises:
            ScrapeError: The page is not what it should be; what was known of the endpoint stays.
        """

    def steps(self, endpoint: Endpoint, page: Page) -> Iterator[None]:
        """Do the same in steps of some milliseconds at the most; requests go on in between.

        What it finds is written in the last step, which ends the iteration. The default is one
        step.

        Raises:
            ScrapeError: As :meth:`extract`.
        """
        self.extract(endpoint, page)
        return iter(())
