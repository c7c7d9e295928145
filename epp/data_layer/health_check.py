"""Active health checks: a data source that polls the health page of each model server.

A check that is due while a metrics scrape uses the shared connection opens another one
(:mod:`.shared_connections`).
"""

from collections.abc import Callable
from typing import ClassVar, Final

from epp.data_layer.errors import ScrapeStatusError
from epp.data_layer.http_client import page_opener
from epp.data_layer.plugins import DataSource, OpenPage, Page, PageClient
from epp.data_layer.shared_connections import SharedConnections
from epp.scheduling import Endpoint

_SERVER_ERROR: Final = 500
_MAX_PAGE_BYTES: Final = 64 * 1024


class HealthCheck(DataSource):
    """Polls ``GET path`` of each endpoint; statuses from 500 on are failures.

    Other statuses, such as 404 or 401, come from a server that responds but has no health page for
    us.

    Args:
        path: Path of the health page.
        interval_seconds: Time between two checks of an endpoint.
        clock: Monotonic seconds.
        connections: Connections to share with other clients; None for new ones.
        open_page: Opens the clients; None for HTTP clients.
    """

    type: ClassVar[str] = "health-check"

    def __init__(
        self,
        path: str,
        interval_seconds: float,
        clock: Callable[[], float],
        *,
        connections: SharedConnections | None = None,
        open_page: OpenPage | None = None,
    ) -> None:
        self.name = self.type
        self.interval_seconds = interval_seconds
        self._path = path
        self._clock = clock
        self._open_page = open_page or page_opener(
            clock, max_page_bytes=_MAX_PAGE_BYTES, connections=connections
        )

    def open(self, endpoint: Endpoint) -> "_HealthPage":
        """Return a client for the health page of ``endpoint``."""
        return _HealthPage(self._open_page(endpoint.address, self._path), self._clock)


class _HealthPage:
    __slots__ = ("_client", "_clock")

    def __init__(self, client: PageClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock

    async def get(self) -> Page:
        requested_at = self._clock()
        try:
            return await self._client.get()
        except ScrapeStatusError as error:
            if error.status >= _SERVER_ERROR:
                raise
            return Page(b"", requested_at)

    def close(self) -> None:
        self._client.close()
