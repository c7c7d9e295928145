"""The extension points of the data layer.

They cover discovering endpoints, listening to changes of the pool and of Kubernetes objects,
polling endpoints and extracting values from the responses.
"""

import ssl
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

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
    "GrpcCaller",
    "HttpCaller",
    "LoadReport",
    "ObjectChange",
    "ObjectEvent",
    "ObjectKind",
    "ObjectListener",
    "ObjectSource",
    "OpenCaller",
    "OpenGrpcCaller",
    "OpenPage",
    "Page",
    "PageClient",
    "PageError",
    "PageTooLargeError",
    "ReportLoad",
    "ScrapeConnectError",
    "ScrapeError",
    "ScrapeStatusError",
    "ignore_report",
    "join_address",
    "split_address",
]


SERVED_MODELS: Final = AttributeKey[frozenset[str]]("served-models")
"""Names of the models and adapters that an endpoint serves, written by an extractor. Metrics always
accept these names as label values."""


@dataclass(frozen=True, slots=True)
class Page:
    """The response of an endpoint to one poll."""

    body: bytes
    requested_at: float
    """When the request was sent, in seconds of the clock that reservations use."""


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """An endpoint as reported by a discovery."""

    name: str
    """``namespace/name``, unique in the pool."""
    address: str
    """``ip:port``, an IPv6 address in brackets."""
    labels: Mapping[str, str] = field(default_factory=dict)
    incarnation: str = ""
    """Distinguishes servers that have had the same name: the UID of a pod."""
    node_address: str = ""
    """IP address of the node that it runs on; "" if unknown."""


class EndpointSink(Protocol):
    """Receives the reports of discoveries."""

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        """Replace all endpoints of ``source`` with ``specs``; unchanged ones keep their state.

        Raises:
            DuplicateEndpointError: Two specs have the same name, or another source has an endpoint
                of that name.
        """


class EndpointDiscovery(Plugin):
    """Finds endpoints and follows their changes."""

    @abstractmethod
    async def run(self, sink: EndpointSink) -> None:
        """Report the endpoints to ``sink``, then every change, until cancelled.

        Raises:
            DiscoveryError: The first report could not be made. Log later failures instead and keep
                the last reported endpoints.
        """


class EndpointListener(Plugin):
    """Is notified when endpoints join the pool, change and leave."""

    @abstractmethod
    def endpoint_added(self, endpoint: Endpoint) -> None:
        """``endpoint`` has joined the pool."""

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        """The labels of ``endpoint`` have changed."""

    @abstractmethod
    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """``endpoint`` has left the pool; requests in flight there may still end."""


class EndpointChange(Enum):
    """What happened to an endpoint of the pool."""

    ADDED = "added"
    CHANGED = "changed"
    """Its labels have changed."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class EndpointEvent:
    """A change of the pool."""

    change: EndpointChange
    endpoint: Endpoint


class EndpointSource(Plugin):
    """Filters changes of the pool for the listeners that are its extractors.

    A listener that no source lists receives every change directly from the pool. If several sources
    list a listener, the first one applies.
    """

    @abstractmethod
    def notify(self, event: EndpointEvent) -> EndpointEvent | None:
        """Return the event to pass to the extractors: ``event``, another one, or None for none."""


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of Kubernetes object in one version of its API group."""

    group: str
    """"" for the core group."""
    version: str
    kind: str
    """Such as ``Pod``."""

    def __str__(self) -> str:
        """Return the kind as messages name it, such as ``Pod (v1)``."""
        version = f"{self.group}/{self.version}" if self.group else self.version
        return f"{self.kind} ({version})"


class ObjectChange(Enum):
    """What happened to a Kubernetes object."""

    UPDATED = "updated"
    """It is new to the listener or has changed."""
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """A change of a Kubernetes object."""

    change: ObjectChange
    kind: ObjectKind
    namespace: str
    """"" for kinds without a namespace."""
    name: str
    uid: str
    """Distinguishes objects that have had the same name."""
    object: Mapping[str, Any]
    """The object as in the API, reduced to the fields that listeners of its kind declare; for a
    deleted object, its last known state. Do not change it."""


class ObjectListener(Plugin):
    """Is notified of the Kubernetes objects of one kind.

    The objects are those of the pool's namespace, or of the cluster if the kind has no namespace.
    The listener is first notified of those that exist, and then of each change. Changes in quick
    succession may arrive as one. After a reload, or after the API server was unreachable, an object
    may be reported again without a change. If the endpoints do not come from the Kubernetes API
    there are no objects.

    Attributes:
        object_kind: The kind; None for no objects.
        object_fields: Fields of ``ObjectEvent.object`` that it reads, besides the name, namespace
            and UID: paths such as ``metadata.labels`` or ``spec.nodeName``. Fields that no listener
            reads are dropped on arrival, because a whole pod takes 20 KB.
        needs_objects: Whether it is of little use without objects.
    """

    object_kind: ObjectKind | None
    object_fields: tuple[str, ...] = ()
    needs_objects: ClassVar[bool] = True

    @abstractmethod
    def object_changed(self, event: ObjectEvent) -> None:
        """Process the change of an object of ``object_kind``."""


class ObjectSource(Plugin):
    """Filters changes of Kubernetes objects for the listeners that are its extractors.

    A listener that no source lists receives every change of its kind. If several sources list a
    listener, the first one applies.

    Attributes:
        object_kind: Kind of the objects.
        needs_objects: As for :class:`ObjectListener`.
    """

    object_kind: ObjectKind
    needs_objects: ClassVar[bool] = True

    @abstractmethod
    def notify_object(self, event: ObjectEvent) -> ObjectEvent | None:
        """Return the event to pass to the extractors: ``event``, another one, or None for none."""

    def extractor_fault(self, extractor: Plugin) -> str:
        """Return why ``extractor``, which the configuration lists, cannot be one; "" if it can."""
        kind = extractor.object_kind if isinstance(extractor, ObjectListener) else None
        if kind is None or kind == self.object_kind:
            return ""
        return f"it reads objects of kind {kind}, not {self.object_kind}"


class PageClient(Protocol):
    """Polls one page of one endpoint over a persistent connection."""

    async def get(self) -> Page:
        """Poll the page.

        Raises:
            ScrapeError: The page could not be read.
        """

    def close(self) -> None:
        """Close the connection; idempotent."""


@runtime_checkable
class CostlyClient(Protocol):
    """A client that measures the CPU cost of receiving; expensive pages are polled less often.

    The scraper measures the cost of extractors itself.
    """

    @property
    def spent_seconds(self) -> float:
        """CPU time of the event loop spent on receiving so far."""


class OpenPage(Protocol):
    """Creates clients for HTTP pages: the service ``open_page`` of a source's constructor."""

    def __call__(self, address: str, path: str, tls: ssl.SSLContext | None = None, /) -> PageClient:
        """Return a client for ``path`` at ``ip:port``; over TLS if ``tls`` is given."""


class HttpCaller(Protocol):
    """Sends JSON with POST to one HTTP server over persistent connections."""

    async def post(self, path: str, body: bytes, *, max_response_bytes: int) -> bytes:
        """Return the response body; the request may be sent twice.

        Raises:
            ScrapeError: The call failed, or the response is longer than ``max_response_bytes``.
            CallerBusyError: Too many calls are waiting; this one was not made.
        """

    def close(self) -> None:
        """Close the connections; idempotent."""


class OpenCaller(Protocol):
    """Creates HTTP callers: the service ``open_caller`` of a plugin's constructor."""

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
            address: ``host:port``; a host name is resolved at each connect.
            tls: For https.
            max_connections: Concurrent calls.
            max_waiting: Calls that may wait for a connection.
        """


class GrpcCaller(Protocol):
    """Makes unary gRPC calls with serialized messages to one server."""

    async def call(self, method: str, message: bytes) -> bytes:
        """Return the response to ``message``; ``method`` is ``/package.Service/Method``.

        Raises:
            ScrapeError: The call failed.
            CallerBusyError: Too many calls are waiting; this one was not made.
        """

    def close(self) -> None:
        """Close the connection; idempotent."""


class OpenGrpcCaller(Protocol):
    """Creates gRPC callers: the service ``open_grpc_caller`` of a plugin's constructor."""

    def __call__(
        self, target: str, /, *, max_calls: int, max_waiting: int, max_response_bytes: int
    ) -> GrpcCaller:
        """Return a client for ``unix:PATH`` or ``host:port``; it connects when first used.

        Args:
            target: ``unix:PATH`` or ``host:port``.
            max_calls: Concurrent calls.
            max_waiting: Calls that may wait for a slot.
            max_response_bytes: Longer responses are refused.
        """


class DataSource(Plugin):
    """Polls each endpoint for a page, such as its metrics.

    Attributes:
        interval_seconds: Time between the starts of two polls of one endpoint, at least 0.05; 0 for
            the default interval (``--refresh-metrics-interval``).
    """

    interval_seconds: float = 0.0

    @abstractmethod
    def open(self, endpoint: Endpoint) -> PageClient:
        """Return a client that polls ``endpoint``; it connects when first used."""


class Extractor(Plugin):
    """Extracts values from the pages of a source and writes them to the endpoint.

    Attributes:
        writes: Attributes that it writes; empty for one that writes ``endpoint.metrics``. A reload
            that drops the last extractor of an attribute removes it from all endpoints.
    """

    writes: ClassVar[tuple[AttributeKey[Any], ...]] = ()

    @abstractmethod
    def extract(self, endpoint: Endpoint, page: Page) -> None:
        """Write the values of ``page`` to ``endpoint.metrics`` or ``endpoint.attributes``.

        Runs on the event loop, so it must not block. A page has at most ``--max-scrape-page-bytes``
        (8 MiB); override :meth:`steps` to parse long pages in parts. Metrics without
        ``requested_at`` get that of the page.

        Raises:
            ScrapeError: The page is invalid; the endpoint keeps its last values.
        """

    def steps(self, endpoint: Endpoint, page: Page) -> Iterator[None]:
        """Extract in steps of a few milliseconds; requests are processed between them.

        Write the values in the last step, which ends the iteration. The default is one step.

        Raises:
            ScrapeError: As :meth:`extract`.
        """
        self.extract(endpoint, page)
        return iter(())


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Load that an endpoint has reported outside of a scrape, such as in a response.

    None stands for a value that is not in the report. Numbers are finite and at least 0.
    """

    waiting_requests: int | None = None
    running_requests: int | None = None
    """Used with ``waiting_requests`` only; estimated if it is None."""
    kv_cache_usage: float | None = None


class ReportLoad(Protocol):
    """Applies load reports: the service ``report_load`` of a plugin's constructor."""

    def __call__(self, endpoint: Endpoint, report: LoadReport, /) -> None:
        """Apply ``report``, which has just arrived, to the metrics and the load of ``endpoint``.

        A scrape requested earlier does not overwrite its values. A report with ``waiting_requests``
        makes the metrics as fresh as a scrape requested now.
        """


def ignore_report(endpoint: Endpoint, report: LoadReport, /) -> None:
    """Ignore a report: a :class:`ReportLoad` for graphs that are built only to be checked."""
