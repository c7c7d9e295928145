"""One worker scrapes, and all get its results."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from data_layer.scraping import Binding, Observer, make_store, running
from data_layer.test_scraper import (
    MODEL,
    FakeSource,
    Get,
    LoadExtractor,
    ModelExtractor,
    page,
    serving,
)

from epp.data_layer import EndpointSpec
from epp.data_layer.errors import ScrapeConnectError
from epp.scheduling import AttributeKey, Endpoint
from epp.workers.leadership import Leadership
from epp.workers.links import Links
from epp.workers.scrape_publisher import LeaderOnly
from epp.workers.shared_scraping import SharedScraper

from .test_links import linked


class Worker:
    """The data layer of one worker."""

    def __init__(self, folder: Path, index: int, get: Get) -> None:
        self.leadership = Leadership()
        self.links = Links(folder, index, 2)
        self.store = make_store("a")
        self.observer, self.counted = Observer(), Observer()
        self.source = FakeSource({"a": get})
        self.scraper = SharedScraper(
            self.store,
            bindings=[Binding(self.source, [LoadExtractor(), ModelExtractor()])],
            clock=asyncio.get_running_loop().time,
            observer=self.observer,
            links=self.links,
            leadership=self.leadership,
        )

    @property
    def endpoint(self) -> Endpoint:
        return self.store.snapshot[0]


@asynccontextmanager
async def two_workers(folder: Path, *gets: Get) -> AsyncIterator[tuple[Worker, Worker]]:
    """Run two workers, of which the first leads."""
    first, second = (Worker(folder, index, get) for index, get in enumerate(gets))
    first.leadership.take()
    async with linked(first.links, second.links), running(first.scraper), running(second.scraper):
        yield first, second


async def test_the_others_have_the_page_its_time_and_the_attributes(tmp_path: Path) -> None:
    async with two_workers(tmp_path, serving(page(7, 3, 0.5)), serving(page(99))) as (one, other):
        await other.observer.until("")
        assert other.endpoint.metrics.waiting_requests == 7
        assert other.endpoint.load.waiting_requests == 7
        assert other.endpoint.attributes[MODEL] == "7 3 0.5"
        assert other.endpoint.metrics.requested_at in one.source.asked_at
        assert other.scraper.ages["ns/0"].scraped_at is not None
        assert other.source.clients == []  # it has never connected


async def test_what_plugins_count_at_an_endpoint_stays_at_its_worker(tmp_path: Path) -> None:
    in_flight = AttributeKey[int]("in flight")
    async with two_workers(tmp_path, serving(page(7)), serving(page(99))) as (one, other):
        await other.observer.until("")
        one.endpoint.attributes[in_flight], other.endpoint.attributes[in_flight] = 5, 2
        for _ in range(3):  # one may have been on its way
            await other.observer.until("")
        assert other.endpoint.attributes[in_flight] == 2


async def test_failures_are_reported_to_the_others_and_end_with_a_page(tmp_path: Path) -> None:
    responses = serving(page(1), then_fail=True)
    is_well = asyncio.Event()

    async def get() -> bytes:
        return page(5) if is_well.is_set() else await responses()

    async with two_workers(tmp_path, get, serving(page(99))) as (_, other):
        await other.observer.until("connect")
        state = other.scraper.states["ns/0", "fake"]
        assert state.polls.last is not None
        assert state.polls.last.kind == "connect"
        assert other.endpoint.metrics.waiting_requests == 1
        is_well.set()
        await other.observer.until("")
        assert state.polls.last is None
        assert other.endpoint.metrics.waiting_requests == 5


async def test_another_worker_scrapes_when_it_leads(tmp_path: Path) -> None:
    async def refused() -> bytes:
        raise ScrapeConnectError("the leader is gone")

    async with two_workers(tmp_path, refused, serving(page(4))) as (_, other):
        await other.observer.until("connect")
        other.leadership.take()
        await other.observer.until("")
        assert other.endpoint.metrics.waiting_requests == 4
        assert len(other.source.clients) == 1


async def test_a_worker_that_joins_late_gets_the_present_pages(tmp_path: Path) -> None:
    once = asyncio.Event()

    async def get() -> bytes:
        if once.is_set():
            await asyncio.Event().wait()
        once.set()
        return page(6)

    one, other = Worker(tmp_path, 0, get), Worker(tmp_path, 1, serving(page(99)))
    one.leadership.take()
    async with running(one.scraper):
        await one.observer.until("")
        async with linked(one.links, other.links), running(other.scraper):
            while other.endpoint.metrics.waiting_requests != 6:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            assert other.endpoint.attributes[MODEL] == "6 0 0.0"


async def test_pages_of_another_server_of_that_name_are_not_applied(tmp_path: Path) -> None:
    async with two_workers(tmp_path, serving(page(7)), serving(page(99))) as (one, other):
        await other.observer.until("")
        other.store.replace_endpoints("test", [EndpointSpec("ns/0", "b")])
        await one.observer.until("")
        await one.observer.until("")
        assert other.endpoint.metrics.requested_at is None


async def test_an_attribute_that_cannot_be_pickled_stays_here_and_the_rest_is_sent(
    tmp_path: Path,
) -> None:
    local = AttributeKey[object]("local/test")
    async with two_workers(tmp_path, serving(page(7), page(8)), serving(page(99))) as (one, other):
        one.endpoint.attributes[local] = lambda: None
        while other.endpoint.metrics.waiting_requests != 8:
            await other.observer.until("")
        assert local not in other.endpoint.attributes
        assert other.endpoint.attributes[MODEL] == "8 0 0.0"


async def test_scrapes_count_once_in_the_metrics_of_all_workers(tmp_path: Path) -> None:
    leadership, counted = Leadership(), Observer()
    only = LeaderOnly(counted, leadership)
    source, extractor = FakeSource({}), LoadExtractor()
    endpoint = make_store("a").snapshot[0]

    def report_all() -> None:
        only.scrape_started(source, 0.25)
        only.page_scraped(source, endpoint, 0.5)
        only.poll_failed(source, endpoint, "connect")
        only.extract_failed(source, extractor, endpoint, "page")

    report_all()
    assert (counted.lags, counted.kinds, counted.extract_errors) == ([], [], [])
    leadership.take()
    report_all()
    assert (counted.lags, counted.kinds) == ([0.25], ["connect"])
    assert counted.extract_errors == [("fake-source", "load-extractor", "page")]
