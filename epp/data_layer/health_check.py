"""Active health checks: a data source that polls the health page of each model server.

It uses a connection of its own to each endpoint, because a response to the scrape of the metrics
may take long.
"""

from collections.abc import Callable
from typing import ClassVar, Final

from epp.data_layer.errors import ScrapeStatusError
from epp.data_layer.http_client import HttpClient
from epp.data_layer.plugins import DataSource, Page
from epp.scheduling import Endpoint

_SERVER_ERROR: Final = 500
_MAX_PAGE_BYTES: Final = 64 * 1024


class HealthCheck(DataSource):
    """Polls ``GET path`` of each endpoint; statuses from 500 on are failures.

    Other statuses, such as 404 or 401, show a server that responds and has no such page for us.

    Args:
        path: Path of the health page.
        interval_seconds: Time between two checks of an endpoint.
        clock: Monotonic seconds.
    """

    type: ClassVar[str] = "health-check"

    def __init__(self, path: str, interval_seconds: float, clock: Callable[[], float]) -> None:
        self.name = self.type
        self.interval_seconds = interval_seconds
        self._path = path
        self._clock = clock

    def open(self, endpoint: Endpoint) -> "_HealthPage":
        """Return a client for the health page of ``endpoint``."""
        client = HttpClient(
            endpoint.address, self._path, clock=self._clock, max_page_bytes=_MAX_PAGE_BYTES
        )
        return _HealthPage(client, self._clock)


class _HealthPage:
    def __init__(self, client: HttpClient, clock: Callable[[], float]) -> None:
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
