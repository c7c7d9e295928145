"""Helpers for tests of the scraper: bindings, an observer to wait for, a running scraper."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from epp.data_layer import EndpointSpec, EndpointStore, Scraper
from epp.scheduling import Endpoint, Plugin


@dataclass(frozen=True, slots=True)
class Binding:
    source: Plugin
    extractors: Sequence[Plugin] = ()


class Observer:
    """Remembers scrapes and lets a test wait for the next of them."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.extract_errors: list[tuple[str, str, str]] = []
        self.lags: list[float] = []
        """How late each scrape was, in seconds."""
        self._news: asyncio.Queue[str] = asyncio.Queue()

    def scrape_started(self, source: Plugin, lag_seconds: float) -> None:
        self.lags.append(lag_seconds)

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        assert seconds >= 0
        self._news.put_nowait("")

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        self.kinds.append(kind)
        self._news.put_nowait(kind)

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        self.extract_errors.append((source.type, extractor.type, kind))
        self._news.put_nowait(f"extract {kind}")

    async def until(self, kind: str) -> None:
        """Wait for a scrape of this outcome, "" for a page that came."""
        while await self._news.get() != kind:
            pass


@asynccontextmanager
async def running(scraper: Scraper) -> AsyncIterator[Scraper]:
    task = asyncio.create_task(scraper.run())
    try:
        yield scraper
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make_store(*addresses: str) -> EndpointStore:
    store = EndpointStore()
    store.replace_endpoints("test", [EndpointSpec(f"ns/{i}", a) for i, a in enumerate(addresses)])
    return store
