"""A load report counts at once like a scrape, and no older scrape overwrites it."""

import asyncio

import pytest

from epp.data_layer import EndpointSpec, EndpointStore, LoadReport, Scraper
from epp.scheduling import NEVER_SCRAPED, Endpoint, EndpointMetrics

from .scraping import make_store, running
from .test_scraper import Get, loads, make_scraper, page, serving

FULL = LoadReport(waiting_requests=7, running_requests=4, kv_cache_usage=0.5)


def values(endpoint: Endpoint) -> tuple[float, float, float]:
    """Return waiting and running requests and KV cache usage; metrics and load must agree."""
    metrics, load = endpoint.metrics, endpoint.load
    of_metrics = (metrics.waiting_requests, metrics.running_requests, metrics.kv_cache_usage)
    assert of_metrics == (load.waiting_requests, load.running_requests, load.kv_cache_usage)
    return of_metrics


def scraping(store: EndpointStore, **gets: Get) -> Scraper:
    return make_scraper(store, loads(gets))


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("report", "want"),
    [
        pytest.param(FULL, (7, 4, 0.5), id="everything"),
        # The page has 3 running and nothing is in flight from here.
        pytest.param(LoadReport(waiting_requests=7), (7, 3, 0.25), id="the queue alone"),
        pytest.param(LoadReport(2, None, 0.75), (2, 3, 0.75), id="as vLLM reports"),
        pytest.param(LoadReport(kv_cache_usage=0.5), (1, 3, 0.5), id="the cache alone"),
        pytest.param(LoadReport(running_requests=9), (1, 3, 0.25), id="no running without a queue"),
    ],
)
async def test_a_report_replaces_what_it_tells(
    report: LoadReport, want: tuple[float, float, float]
) -> None:
    store = make_store("a")
    async with running(scraping(store, a=serving(b"1 3 0.25"))) as scraper:
        await asyncio.sleep(0.01)
        (endpoint,) = store.snapshot
        assert values(endpoint) == (1, 3, 0.25)
        scraper.take_report(endpoint, report)
        assert values(endpoint) == want
        await asyncio.sleep(0.05)  # the next scrape
        assert values(endpoint) == (1, 3, 0.25)


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("report", "want"),
    [
        pytest.param(FULL, (7, 4, 0.5), id="everything"),
        pytest.param(LoadReport(7, None, 0.5), (7, 3, 0.5), id="the page's running requests"),
        pytest.param(LoadReport(kv_cache_usage=0.5), (1, 3, 0.5), id="the page's queue"),
    ],
)
async def test_a_scrape_that_was_requested_before_a_report_does_not_undo_it(
    report: LoadReport, want: tuple[float, float, float]
) -> None:
    store = make_store("a")

    async def slow() -> bytes:
        await asyncio.sleep(0.04)
        return b"1 3 0.25"

    async with running(scraping(store, a=slow)) as scraper:
        await asyncio.sleep(0.02)  # it is under way
        (endpoint,) = store.snapshot
        scraper.take_report(endpoint, report)
        await asyncio.sleep(0.025)
        assert scraper.ages["ns/0"].scraped_at is not None
        assert values(endpoint) == want
        await asyncio.sleep(0.1)  # one that was requested later
        assert values(endpoint) == (1, 3, 0.25)


@pytest.mark.looptime
async def test_a_report_with_a_queue_makes_stale_metrics_fresh() -> None:
    store = make_store("a", "b")
    gets = {"a": serving(page(100), then_fail=True), "b": serving(page(0))}
    async with running(scraping(store, **gets)) as scraper:
        endpoint = store.snapshot[0]
        await asyncio.sleep(2)
        assert endpoint.load.waiting_requests == 0  # faded to the other's
        for waiting in range(20, 60):
            scraper.take_report(endpoint, LoadReport(kv_cache_usage=0.5))  # says nothing of it
            scraper.take_report(endpoint, LoadReport(waiting_requests=waiting))
            await asyncio.sleep(0.1)  # two updates of stale loads
            assert endpoint.load.waiting_requests == waiting
        scraper.take_report(endpoint, LoadReport(kv_cache_usage=0.5))
        await asyncio.sleep(2)
        assert endpoint.load.waiting_requests == 0


@pytest.mark.looptime
async def test_the_report_of_a_server_that_was_never_scraped_replaces_the_guess() -> None:
    store = make_store("busy")
    gets = {"busy": serving(page(100)), "new": serving()}
    async with running(scraping(store, **gets)) as scraper:
        await asyncio.sleep(0.1)
        specs = [EndpointSpec("ns/0", "busy"), EndpointSpec("ns/1", "new")]
        store.replace_endpoints("test", specs)
        endpoint = store.snapshot[1]
        assert (endpoint.metrics, endpoint.load.waiting_requests) == (NEVER_SCRAPED, 100)
        scraper.take_report(endpoint, LoadReport(waiting_requests=2))
        assert values(endpoint) == (2, 0, 0.0)
        await asyncio.sleep(0.1)
        assert values(endpoint) == (2, 0, 0.0)


@pytest.mark.looptime
async def test_reports_do_not_shorten_the_interval_by_which_scrapes_are_doubted() -> None:
    store = make_store("slow")

    async def get() -> bytes:
        await asyncio.sleep(0.28)
        return page(100)

    async with running(scraping(store, slow=get)) as scraper:
        for _ in range(30):
            await asyncio.sleep(0.05)
            scraper.take_report(store.snapshot[0], FULL)
        assert scraper.ages["ns/0"].interval_seconds == pytest.approx(0.3)


@pytest.mark.looptime
async def test_reports_of_endpoints_that_have_left_change_nothing() -> None:
    store = make_store("a")
    async with running(scraping(store, a=serving(b"1 3 0.25"), b=serving(b"2 3 0.25"))) as scraper:
        await asyncio.sleep(0.01)
        (left,) = store.snapshot
        store.replace_endpoints("test", [EndpointSpec("ns/0", "b")])  # another of its name
        await asyncio.sleep(0.01)
        scraper.take_report(left, FULL)
        assert values(left) == (1, 3, 0.25)
        assert values(store.snapshot[0]) == (2, 3, 0.25)
        store.replace_endpoints("test", [])
        scraper.take_report(left, FULL)
    scraper.take_report(left, FULL)  # nor after the end
    assert left.metrics == EndpointMetrics(1, 3, 0.25, requested_at=left.metrics.requested_at)


@pytest.mark.looptime
async def test_a_report_is_no_page_for_those_who_follow_the_servers_counters() -> None:
    store, pages = make_store("a"), []
    async with running(scraping(store, a=serving(b"1 3 0.25"))) as scraper:
        await asyncio.sleep(0.01)
        (endpoint,) = store.snapshot
        endpoint.load.observers.append(lambda: pages.append(endpoint.load.waiting_requests))
        scraper.take_report(endpoint, FULL)
        assert pages == []
        await asyncio.sleep(0.05)  # the next scrape
        assert pages == [1]
