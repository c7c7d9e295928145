"""Keeps ``endpoint.metrics`` and ``endpoint.load`` of the whole pool up to date.

One task per endpoint, started and stopped as the store tells of endpoints: GET, scan, swap the
page, correct the load. Beside them one pass per interval looks for pages that have grown old and
replaces what is believed of those endpoints (:mod:`epp.data_layer.staleness`). A failed scrape
changes nothing but the age.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Final, Protocol

import structlog

from epp.data_layer.errors import ScrapeError, ScrapeTimeoutError
from epp.data_layer.http_client import HttpClient, Page
from epp.data_layer.metrics_page import MetricsPageScanner
from epp.data_layer.scrape_state import ScrapeState
from epp.data_layer.staleness import NOTHING_KNOWN, Belief, fade, page_belief, pool_median
from epp.data_layer.store import EndpointStore
from epp.scheduling import Endpoint, EndpointMetrics

_log = structlog.get_logger(__name__)

_GOLDEN_RATIO: Final = 0.618033988749895
"""Multiples of it modulo 1 are spread evenly for any number of endpoints."""


class PageClient(Protocol):
    """Gets pages from one endpoint; :class:`HttpClient` is one."""

    async def get(self, path: str) -> Page:
        """Return the page at ``path``.

        Raises:
            ScrapeError: There is none.
        """

    def close(self) -> None:
        """Give up the connection; idempotent."""


class ScrapeObserver(Protocol):
    """Is told of every scrape, for metrics."""

    def scrape_succeeded(self, endpoint: Endpoint, seconds: float) -> None:
        """A page came ``seconds`` after its GET was sent and was understood."""

    def scrape_failed(self, endpoint: Endpoint, kind: str) -> None:
        """A scrape failed; ``kind`` is the error class's (``datalayer_poll_errors_total``)."""


class NullScrapeObserver:
    """Listens to nothing."""

    def scrape_succeeded(self, endpoint: Endpoint, seconds: float) -> None:
        """Ignore the scrape."""

    def scrape_failed(self, endpoint: Endpoint, kind: str) -> None:
        """Ignore the scrape."""


class Scraper:
    """Scrapes every endpoint of a store; listens to the store while it runs.

    Args:
        store: The pool.
        interval_seconds: Time between the starts of two scrapes of one endpoint.
        timeout_seconds: Limit of one scrape, connecting included.
        staleness_seconds: Age above which a page is doubted, if scrapes come often enough.
        path: What is asked for.
        clock: Seconds of the monotonic clock that reservations use too.
        scanner: Reads the pages.
        open_client: Makes the client for an address; plain HTTP unless given.
        observer: Is told of every scrape.
    """

    def __init__(
        self,
        store: EndpointStore,
        *,
        interval_seconds: float = 0.05,
        timeout_seconds: float = 1.0,
        staleness_seconds: float = 0.2,
        path: str = "/metrics",
        clock: Callable[[], float] = time.monotonic,
        scanner: MetricsPageScanner | None = None,
        open_client: Callable[[str], PageClient] | None = None,
        observer: ScrapeObserver | None = None,
    ) -> None:
        self._store = store
        self._interval = interval_seconds
        self._timeout = timeout_seconds
        self._staleness = staleness_seconds
        self._path = path
        self._clock = clock
        self._scanner = scanner or MetricsPageScanner()
        self._open_client = open_client or (lambda address: HttpClient(address, clock=clock))
        self._observer = observer or NullScrapeObserver()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._states: dict[str, ScrapeState] = {}
        self._starts = count(1)
        self._target = NOTHING_KNOWN
        self._target_version = -1
        self.states: Mapping[str, ScrapeState] = MappingProxyType(self._states)
        """Live state of every endpoint now being scraped, by endpoint name."""

    async def run(self) -> None:
        """Scrape until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._store.add_listener(self)
            try:
                while True:
                    await asyncio.sleep(self._interval)
                    self.age_beliefs()
            finally:
                self._store.remove_listener(self)
                self._group = None
                self._tasks.clear()
                self._states.clear()

    # PoolListener

    def endpoint_added(self, endpoint: Endpoint) -> None:
        assert self._group is not None, "the scraper listens only while it runs"  # noqa: S101
        state = ScrapeState(endpoint, self._interval, self._interval)
        self._states[endpoint.name] = state
        self._tasks[endpoint.name] = self._group.create_task(
            self._follow(state), name=f"scrape {endpoint.name}"
        )
        if self._target_version != self._store.version:  # once for all that came together
            self._target_version = self._store.version
            self._target = self._sort_by_age()[1]
        _assume(endpoint, self._target)

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        del self._states[endpoint.name]
        self._tasks.pop(endpoint.name).cancel()

    def age_beliefs(self) -> None:
        """Replace what is believed of endpoints whose page is old or has never come.

        Free of effect, and nearly of cost, while every page is fresh.
        """
        doubted, target = self._sort_by_age()
        for state, faded in doubted:
            _assume(state.endpoint, fade(page_belief(state.endpoint.metrics), target, faded))

    def _sort_by_age(self) -> tuple[list[tuple[ScrapeState, float]], Belief]:
        """Return the endpoints to doubt and how much, and what they fade to."""
        now = self._clock()
        doubted: list[tuple[ScrapeState, float]] = []
        fresh: list[EndpointMetrics] = []
        for state in self._states.values():
            faded = state.faded(now, self._staleness)
            if faded > 0:
                doubted.append((state, faded))
            else:
                fresh.append(state.endpoint.metrics)
        if not doubted:
            return doubted, NOTHING_KNOWN
        pages = [state.endpoint.metrics for state, _ in doubted]
        return doubted, pool_median(fresh or [p for p in pages if p.requested_at is not None])

    async def _follow(self, state: ScrapeState) -> None:
        """Scrape one endpoint: at once, then at its own phase of the common interval."""
        client = self._open_client(state.endpoint.address)
        due = self._clock() + (next(self._starts) * _GOLDEN_RATIO) % 1.0 * self._interval
        try:
            while True:
                await self._scrape(state, client)
                now = self._clock()
                if now > due:  # late: the ticks missed are left out, the phase is kept
                    due += self._interval * -(-(now - due) // self._interval)
                await asyncio.sleep(due - now)
                due += self._interval
        finally:
            client.close()

    async def _scrape(self, state: ScrapeState, client: PageClient) -> None:
        try:
            try:
                async with asyncio.timeout(self._timeout):
                    page = await client.get(self._path)
            except TimeoutError:
                text = f"the page did not come within {self._timeout} s"
                raise ScrapeTimeoutError(text) from None
            metrics = self._scanner.scan(page.body, page.requested_at)
        except ScrapeError as error:
            self._note_error(state, error)
            return
        endpoint = state.endpoint
        if state.last_error is not None:
            _log.info(
                "endpoint scrape recovered",
                endpoint=endpoint.name,
                failed_scrapes=state.errors_in_a_row,
            )
        state.note_page(page.requested_at)
        endpoint.metrics = metrics
        endpoint.load.observe(
            waiting=metrics.waiting_requests,
            running=metrics.running_requests,
            kv_cache_usage=metrics.kv_cache_usage,
            requested_at=page.requested_at,
        )
        self._observer.scrape_succeeded(endpoint, self._clock() - page.requested_at)

    def _note_error(self, state: ScrapeState, error: ScrapeError) -> None:
        endpoint = state.endpoint
        self._observer.scrape_failed(endpoint, error.kind)
        if state.note_error(error):
            _log.warning(
                "endpoint scrape failed",
                endpoint=endpoint.name,
                address=endpoint.address,
                path=self._path,
                kind=error.kind,
                error=str(error),
            )


def _assume(endpoint: Endpoint, belief: Belief) -> None:
    endpoint.load.assume(
        waiting=belief.waiting,
        running=belief.running,
        kv_cache_usage=belief.kv_cache_usage,
    )
