"""Scraping takes at most its share of a core: expensive pages are fetched less often."""

import asyncio
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.data_layer import EndpointSpec, EndpointStore, Page, Scraper
from epp.data_layer.plugins import DataSource, Extractor, PageClient
from epp.data_layer.scrape_pace import (
    ENDPOINT_PART,
    MAX_INTERVAL_SECONDS,
    PoolPace,
    ScrapePace,
)
from epp.observability import Metrics
from epp.scheduling import Endpoint, EndpointMetrics

from .scraping import Binding, Observer, running

INTERVAL = 0.05


def make_pace(*costs: float, pool: PoolPace | None = None) -> ScrapePace:
    pace = ScrapePace(INTERVAL, pool or PoolPace(0.2))
    for cost in costs:
        pace.note(cost)
    return pace


@pytest.mark.parametrize(
    ("costs", "interval"),
    [
        pytest.param([], INTERVAL, id="nothing known"),
        pytest.param([70e-6] * 3, INTERVAL, id="a page of vLLM"),
        pytest.param([0.001] * 3, INTERVAL, id="just within 2 percent"),
        pytest.param([0.0011] * 3, 2 * INTERVAL, id="just beyond: whole ticks"),
        pytest.param([0.035] * 3, 1.75, id="180 000 series: 0.035 s / 0.02"),
        pytest.param([0.035, 70e-6, 70e-6], INTERVAL, id="once is no reason"),
        pytest.param([0.035], 1.75, id="but the first counts"),
        pytest.param([10.0] * 3, MAX_INTERVAL_SECONDS, id="no longer than a minute"),
    ],
)
def test_one_endpoint_takes_two_percent_of_a_core(costs: list[float], interval: float) -> None:
    assert make_pace(*costs).interval_seconds == pytest.approx(interval)


@given(
    st.lists(st.floats(0, 0.2), min_size=1, max_size=40),
    st.sampled_from([0.05, 0.2, 1.0]),
)
def test_the_pool_takes_its_share_and_what_is_cheap_is_not_slowed(
    costs: list[float], share: float
) -> None:
    pool = PoolPace(share)
    paces = [make_pace(cost, pool=pool) for cost in costs]
    pool.settle(paces)
    within = [pace for pace in paces if pace.interval_seconds < MAX_INTERVAL_SECONDS]
    assert sum(p.cost_seconds / p.interval_seconds for p in within) <= share * 1.0001
    assert pool.cap <= share * ENDPOINT_PART
    for pace in paces:
        if pace.cost_seconds / INTERVAL <= min(pool.cap, share / len(paces)):
            assert pace.interval_seconds == INTERVAL


def test_the_cap_rises_again_when_there_is_room() -> None:
    pool = PoolPace(0.2)
    paces = [make_pace(0.001, pool=pool) for _ in range(20)]
    pool.settle(paces)
    assert pool.is_tight
    assert paces[0].interval_seconds == 2 * INTERVAL  # 20 x 0.02 is twice the share
    pool.settle(paces[:5])
    assert not pool.is_tight
    assert paces[0].interval_seconds == INTERVAL


class DearClient:
    """Says that a page costs as much as the test wants."""

    def __init__(self, source: "CostlySource") -> None:
        self._source = source
        self.spent_seconds = 0.0

    async def get(self) -> Page:
        now = asyncio.get_running_loop().time()
        self._source.asked_at.append(now)
        self.spent_seconds += self._source.cost_seconds
        return Page(b"3 2 0.25", now)

    def close(self) -> None:
        """Nothing is open."""


class CostlySource(DataSource):
    type: ClassVar[str] = "costly-source"
    name = "costly"

    def __init__(self, cost_seconds: float) -> None:
        self.cost_seconds = cost_seconds
        self.asked_at: list[float] = []

    def open(self, endpoint: Endpoint) -> PageClient:
        return DearClient(self)


class LoadExtractor(Extractor):
    type: ClassVar[str] = "load-extractor"
    name = "load"

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        endpoint.metrics = EndpointMetrics(3, 2, 0.25)


def make_scraper(source: CostlySource, *, endpoints: int = 1) -> Scraper:
    store = EndpointStore()
    specs = [EndpointSpec(f"ns/{n}", f"10.0.0.{n}:80") for n in range(endpoints)]
    store.replace_endpoints("test", specs)
    return Scraper(
        store,
        [Binding(source, [LoadExtractor()])],
        interval_seconds=INTERVAL,
        clock=asyncio.get_running_loop().time,
        observer=Observer(),
    )


@pytest.mark.looptime
async def test_a_costly_page_is_asked_for_less_often_and_reported_once() -> None:
    source = CostlySource(0.04)
    with capture_logs() as logs:
        async with running(make_scraper(source)) as scraper:
            await asyncio.sleep(20.5)
            age = scraper.ages["ns/0"]
            assert age.interval_seconds == pytest.approx(2.0, rel=0.1)  # 0.04 s / 0.02
            # 3 times the present interval, not of the configured one.
            assert age.faded(source.asked_at[-1] + 5.9, 0.2) == 0.0
            assert age.faded(source.asked_at[-1] + 7.0, 0.2) > 0.0
    assert 10 <= len(source.asked_at) <= 12
    (line,) = [each for each in logs if "scraped less often" in each["event"]]
    assert line["endpoint"] == "ns/0"
    assert "--max-scrape-cpu-percent" in line["remedy"]
    assert line["cost_seconds"] >= 0.04


@pytest.mark.looptime
async def test_the_last_page_is_not_doubted_while_the_next_is_not_due() -> None:
    source = CostlySource(70e-6)
    async with running(make_scraper(source)) as scraper:
        await asyncio.sleep(1.0)
        source.cost_seconds = 0.04
        await asyncio.sleep(0.5)
        age = scraper.ages["ns/0"]
        assert age.interval_seconds == pytest.approx(2.0, rel=0.1)
        assert age.faded(source.asked_at[-1] + 1.9, 0.2) == 0.0


@pytest.mark.looptime
async def test_a_page_that_becomes_cheap_is_asked_for_often_again() -> None:
    source = CostlySource(0.04)
    async with running(make_scraper(source)):
        await asyncio.sleep(5)
        source.cost_seconds = 70e-6
        await asyncio.sleep(10)
        before = len(source.asked_at)
        await asyncio.sleep(1)
        assert len(source.asked_at) - before == pytest.approx(20, abs=1)


@pytest.mark.looptime
async def test_many_endpoints_share_what_scraping_may_cost() -> None:
    source = CostlySource(0.001)
    with capture_logs() as logs:
        async with running(make_scraper(source, endpoints=40)):
            await asyncio.sleep(10)
            before = len(source.asked_at)
            await asyncio.sleep(10)
    asked = len(source.asked_at) - before
    assert asked * 0.001 / 10 <= 0.21
    assert asked > 1500
    (line,) = [each for each in logs if "together they cost" in each["event"]]
    assert line["scrapes"] == 40


@pytest.mark.looptime
async def test_the_metrics_tell_the_present_interval() -> None:
    metrics = Metrics()
    async with running(make_scraper(CostlySource(0.04))) as scraper:
        metrics.watch_scrapes(scraper.intervals)
        await asyncio.sleep(5)
        value = metrics.registry.get_sample_value(
            "llm_d_epp_datalayer_scrape_interval_seconds",
            {"model_server_endpoint": "0", "source": "costly"},
        )
    assert value == pytest.approx(2.0, rel=0.1)


class SteppingExtractor(LoadExtractor):
    """Reads in steps, and lets the test look in between."""

    name = "stepping"

    def __init__(self) -> None:
        self.turns: list[float] = []

    def steps(self, endpoint: Endpoint, page: Page):  # type: ignore[no-untyped-def] # a plugin's
        for _ in range(3):
            self.turns.append(asyncio.get_running_loop().time())
            yield
        self.extract(endpoint, page)


@pytest.mark.looptime
async def test_the_loop_goes_on_between_the_steps_of_an_extractor() -> None:
    source, extractor, seen = CostlySource(0.0), SteppingExtractor(), []
    scraper = make_scraper(source)
    scraper.use([Binding(source, [extractor])])

    def look() -> None:
        seen.append(len(extractor.turns))
        if len(extractor.turns) < 3:
            asyncio.get_running_loop().call_soon(look)

    asyncio.get_running_loop().call_soon(look)
    async with running(scraper):
        await asyncio.sleep(INTERVAL / 2)
    assert {1, 2} <= set(seen)
