"""Scrapes one endpoint for one source and runs the extractors on the page.

Sources and extractors may be third-party code: a failure of one is counted and logged, and does not
affect the others.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from time import thread_time
from typing import Final, cast

import structlog

from epp.data_layer.errors import ScrapeError
from epp.data_layer.load_estimates import LoadEstimates
from epp.data_layer.plugins import CostlyClient, DataSource, Extractor, Page, PageClient
from epp.data_layer.polls import Polls
from epp.data_layer.scrape_observers import ScrapeObserver
from epp.data_layer.scrape_pace import PoolPace, ScrapePace
from epp.data_layer.scrape_state import Faults, ScrapeState
from epp.observability import DebugLine
from epp.scheduling import Endpoint, EndpointMetrics, Plugin

_log = structlog.get_logger(__name__)
_failed_again: Final = DebugLine("endpoint scrape failed again", logger=__name__)
_not_understood_again: Final = DebugLine("endpoint page not understood again", logger=__name__)


class PluginFaultError(ScrapeError):
    """A source or an extractor raised an exception outside its contract: a bug of the plugin."""

    kind = "plugin"


@dataclass(slots=True, eq=False, kw_only=True)
class ScrapeSettings:
    """Settings and state that all scrapes of a pool share."""

    clock: Callable[[], float]
    observer: ScrapeObserver
    load_estimates: LoadEstimates
    pool_pace: PoolPace
    polls: Polls
    logged_bugs: set[tuple[str, str]] = field(default_factory=set)
    """Plugin and exception class of each bug that was logged with its traceback."""


class Scrape:
    """Scrapes one endpoint for one source; the first run opens a client.

    Args:
        source: Opens the client.
        extractors: Read each page, in this order.
        endpoint: The endpoint to scrape.
        interval_seconds: Time between the starts of two scrapes.
        settings: Shared by all scrapes.
    """

    __slots__ = (
        "_client",
        "_counts_cost",
        "_extractors",
        "_has_written",
        "_logged_costly",
        "_page_bytes",
        "_settings",
        "_source",
        "_spent_seconds",
        "_unbroken",
        "endpoint",
        "pace",
        "state",
    )

    def __init__(
        self,
        source: DataSource,
        extractors: Sequence[Extractor],
        endpoint: Endpoint,
        *,
        interval_seconds: float,
        settings: ScrapeSettings,
    ) -> None:
        self.endpoint = endpoint
        self.pace = ScrapePace(interval_seconds, settings.pool_pace)
        self.state = ScrapeState(endpoint, source.name, self.pace)
        self._source = source
        self._extractors = [
            (extractor, self.state.extracts.setdefault(extractor.name, Faults()))
            for extractor in extractors
        ]
        self._settings = settings
        self._client: PageClient | None = None
        self._logged_costly = False
        self._counts_cost = False
        """Whether the client is a :class:`CostlyClient`."""
        self._spent_seconds = 0.0
        """CPU time of this scrape so far, without that of the client."""
        self._page_bytes = 0
        self._has_written = False
        """Whether an extractor has written metrics from the latest page."""
        self._unbroken = True
        """Whether no poll or extractor failed since the last metrics were written."""

    async def run(self, lag_seconds: float = 0.0) -> None:
        """Scrape once, ``lag_seconds`` after it was due; failures are counted and logged."""
        self._settings.observer.scrape_started(self._source, lag_seconds)
        if self._client is None:
            self._client = self._open()
        if self._client is not None:
            await self._measured(self._client)

    @property
    def source(self) -> DataSource:
        """The source."""
        return self._source

    @property
    def extractors(self) -> Sequence[Extractor]:
        """The extractors, in the order in which they run."""
        return [extractor for extractor, _ in self._extractors]

    def take(self, metrics: EndpointMetrics | None) -> None:
        """Apply metrics that another process has scraped; None for a page without metrics."""
        if self.state.polls.last is not None:
            self._note_recovery("endpoint scrape recovered", self.state.polls)
        settings = self._settings
        if metrics is not None:
            self.endpoint.metrics = metrics
            self._take_metrics(settings.clock())
            self._unbroken = True
        settings.observer.page_scraped(self._source, self.endpoint, 0.0)

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except Exception as error:
                self._note_poll(error)

    def _open(self) -> PageClient | None:
        try:
            client = self._source.open(self.endpoint)
        except Exception as error:
            self._note_poll(error)
            return None
        self._counts_cost = isinstance(client, CostlyClient)  # takes 20 us
        return client

    async def _measured(self, client: PageClient) -> None:
        """Scrape once, and adapt the interval to the CPU time that it took."""
        self._spent_seconds = 0.0
        before = self._spent_by(client)
        wrote = await self._scrape(client)
        pace, endpoint = self.pace, self.endpoint
        pace.note(self._spent_seconds + max(0.0, self._spent_by(client) - before))
        if wrote and pace.interval_seconds > pace.configured_seconds:
            self._settings.load_estimates.slow_down(endpoint, pace.interval_seconds)
        if pace.is_costly and not self._logged_costly:
            self._logged_costly = True
            _log.warning(
                "endpoint is scraped less often, its page costs too much CPU",
                endpoint=endpoint.name,
                source=self._source.name,
                cost_seconds=round(pace.cost_seconds, 6),
                page_bytes=self._page_bytes,
                interval_seconds=round(pace.interval_seconds, 3),
                remedy="have the server publish fewer series, or raise --max-scrape-cpu-percent",
            )

    def _spent_by(self, client: PageClient) -> float:
        """Return the CPU time that the client has reported; 0.0 if that is not a valid number."""
        if not self._counts_cost:
            return 0.0
        spent = cast("CostlyClient", client).spent_seconds
        return spent if _is_count(spent) else 0.0

    async def _scrape(self, client: PageClient) -> bool:
        """Scrape once; return whether an extractor has written metrics."""
        try:
            page = await self._poll(client)
        except Exception as error:
            self._note_poll(error)
            return False
        self._note_recovery("endpoint scrape recovered", self.state.polls)
        settings = self._settings
        self._page_bytes = len(page.body)
        self._has_written = False
        outcomes = [await self._extract(one, faults, page) for one, faults in self._extractors]
        if self._has_written:
            self._unbroken = True
        elif not all(outcomes):
            self._unbroken = False
        now = settings.clock()
        settings.observer.page_scraped(self._source, self.endpoint, now - page.requested_at)
        return self._has_written

    async def _extract(self, extractor: Extractor, faults: Faults, page: Page) -> bool:
        endpoint = self.endpoint
        before = endpoint.metrics
        error: Exception | None = None
        began = thread_time()
        try:
            for _ in extractor.steps(endpoint, page):
                self._spent_seconds += thread_time() - began
                await asyncio.sleep(0)
                before = endpoint.metrics  # another source may have written it meanwhile
                began = thread_time()
        except Exception as raised:
            error = raised
        self._spent_seconds += thread_time() - began
        # Values written before a failure are kept, if they are valid.
        if endpoint.metrics is not before and not _are_usable(endpoint.metrics):
            error = PluginFaultError(f"it wrote {endpoint.metrics!r} to endpoint.metrics")
            endpoint.metrics = before
        if endpoint.metrics is not before:
            self._take_metrics(page.requested_at)
        if error is not None:
            self._note_extract(extractor, faults, error)
            return False
        self._note_recovery("endpoint page understood again", faults, extractor.name)
        return True

    def _take_metrics(self, requested_at: float) -> None:
        """Update the load estimate with the metrics that an extractor has just written."""
        self._has_written = True
        self._settings.load_estimates.take_metrics(
            self.endpoint,
            requested_at,
            self.pace.interval_seconds,
            unbroken=self._unbroken,
        )

    async def _poll(self, client: PageClient) -> Page:
        page = await self._settings.polls.poll(self.state, client)
        if not isinstance(page, Page) or not _is_count(page.requested_at):
            raise PluginFaultError(f"its client gave {repr(page)[:100]}, which is no Page")
        return page

    def _note_poll(self, error: Exception) -> None:
        fault = _fault(error)
        self._unbroken = False
        self._settings.observer.poll_failed(self._source, self.endpoint, fault.kind)
        if self._is_news(self.state.polls.note(fault), self._source, error):
            self._warn("endpoint scrape failed", self._source, fault, error)
        elif _failed_again.enabled:
            _failed_again.write(self._facts, self._source, fault, self.state.polls)

    def _note_extract(self, extractor: Extractor, faults: Faults, error: Exception) -> None:
        fault = _fault(error)
        self._settings.observer.extract_failed(self._source, extractor, self.endpoint, fault.kind)
        if self._is_news(faults.note(fault), extractor, error):
            self._warn("endpoint page not understood", extractor, fault, error)
        elif _not_understood_again.enabled:
            _not_understood_again.write(self._facts, extractor, fault, faults)

    def _is_news(self, is_first: bool, plugin: Plugin, error: Exception) -> bool:
        if isinstance(error, ScrapeError):
            return is_first
        bug = (plugin.name, type(error).__name__)
        if bug in self._settings.logged_bugs:
            return False  # one traceback, not one for each endpoint
        self._settings.logged_bugs.add(bug)
        return True

    def _warn(self, event: str, plugin: Plugin, fault: ScrapeError, error: Exception) -> None:
        exc_info = None if fault is error else error
        _log.warning(event, **self._facts(plugin, fault), exc_info=exc_info)

    def _facts(
        self, plugin: Plugin, fault: ScrapeError, faults: Faults | None = None
    ) -> dict[str, object]:
        return {
            "endpoint": self.endpoint.name,
            "address": self.endpoint.address,
            "source": self._source.name,
            "plugin": plugin.name,
            "kind": fault.kind,
            "error": str(fault),
            **({} if faults is None else {"failures": faults.in_a_row}),
        }

    def _note_recovery(self, event: str, faults: Faults, extractor: str = "") -> None:
        if faults.last is None:
            return
        failures = faults.clear()
        _log.info(
            event,
            endpoint=self.endpoint.name,
            source=self._source.name,
            plugin=extractor or self._source.name,
            failures=failures,
        )


def _are_usable(metrics: object) -> bool:
    """Return whether ``metrics`` holds valid numbers."""
    return (
        isinstance(metrics, EndpointMetrics)
        and _is_count(metrics.waiting_requests)
        and _is_count(metrics.running_requests)
        and _is_count(metrics.kv_cache_usage)
        and (metrics.requested_at is None or _is_count(metrics.requested_at))
    )


def _is_count(value: float) -> bool:
    """Return whether it is a finite number of at least 0; plugins may pass any type."""
    try:
        return 0 <= value < inf
    except TypeError:
        return False


def _fault(error: Exception) -> ScrapeError:
    if isinstance(error, ScrapeError):
        return error
    return PluginFaultError(f"{type(error).__name__}: {error}")
