"""Idle endpoints are scraped less often."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise

import pytest

from data_layer.scraping import Binding, make_store, running
from data_layer.test_scraper import FakeSource, LoadExtractor, make_scraper, page, serving
from epp.data_layer import EndpointSpec, EndpointStore, HealthCheck, Scraper
from epp.scheduling import Reservation

pytestmark = pytest.mark.looptime

IDLE, BUSY = page(0), page(0, 3)


def gaps(source: FakeSource) -> Sequence[float]:
    return [after - before for before, after in pairwise(source.asked_at)]


def adaptive(store: EndpointStore, source: FakeSource) -> AbstractAsyncContextManager[Scraper]:
    return running(make_scraper(store, Binding(source, [LoadExtractor()]), is_adaptive=True))


async def test_the_interval_of_an_idle_endpoint_grows_to_a_second() -> None:
    source = FakeSource({"a": serving(IDLE)})
    store = make_store("a")
    async with adaptive(store, source) as scraper:
        await asyncio.sleep(60)
        rests = gaps(source)[10:]
        assert 0.7 <= min(rests) <= max(rests) <= 1.4
        assert 0.9 <= sum(rests) / len(rests) <= 1.1
        assert len(set(rests)) > 10  # jitter
        (age,) = scraper.ages.values()
        assert age.faded(asyncio.get_running_loop().time(), 0.2) == 0.0
        assert scraper.intervals()["ns/0", "fake"] > 0.7


async def test_a_request_ends_the_rest_and_keeps_the_base_interval_until_it_ends() -> None:
    source = FakeSource({"a": serving(IDLE)})
    store = make_store("a")
    async with adaptive(store, source):
        await asyncio.sleep(20)
        (endpoint,) = store.snapshot
        clock = asyncio.get_running_loop().time
        sent_at = clock()
        request = Reservation(endpoint.load, sent_at)
        await asyncio.sleep(1.0)
        after = [at for at in source.asked_at if at > sent_at]
        assert after[0] - sent_at == pytest.approx(0.05, abs=0.011)
        assert len(after) >= 19
        request.release(clock())
        ended = len(source.asked_at)
        await asyncio.sleep(10)
        assert len(source.asked_at) - ended < 20


async def test_requests_of_others_on_the_page_keep_the_base_interval() -> None:
    source = FakeSource({"a": serving(BUSY)})
    async with adaptive(make_store("a"), source):
        await asyncio.sleep(5)
    assert len(source.asked_at) >= 99


async def test_a_change_on_the_page_brings_the_base_interval_back() -> None:
    pages = [IDLE] * 10 + [BUSY, *[IDLE] * 100]
    source = FakeSource({"a": serving(*pages)})
    async with adaptive(make_store("a"), source):
        await asyncio.sleep(30)
    assert gaps(source)[10] == pytest.approx(0.05, abs=0.05)


async def test_failures_are_followed_up_at_once_and_then_less_often() -> None:
    source = FakeSource({"a": serving(then_fail=True)})
    async with adaptive(make_store("a"), source):
        await asyncio.sleep(20)
    first, last = gaps(source)[:4], gaps(source)[-5:]
    assert all(gap <= 0.1 for gap in first)
    assert all(0.3 <= gap <= 0.7 for gap in last)


async def test_sources_with_an_interval_of_their_own_keep_it() -> None:
    source = FakeSource({"a": serving(IDLE)}, interval_seconds=0.3)
    async with adaptive(make_store("a"), source):
        await asyncio.sleep(10)
    assert all(gap == pytest.approx(0.3, abs=0.061) for gap in gaps(source)[1:])
    assert len(source.asked_at) == pytest.approx(34, abs=1)


async def test_idle_endpoints_are_spread_over_time() -> None:
    source = FakeSource({str(n): serving(IDLE) for n in range(200)})
    async with adaptive(make_store(*map(str, range(200))), source):
        await asyncio.sleep(30)
    counts = [0] * 20
    for at in source.asked_at:
        if at >= 25.0:
            counts[int((at - 25.0) * 4)] += 1
    assert max(counts) < 2 * sum(counts) / len(counts)


async def test_health_checks_of_idle_endpoints_become_rare_but_not_those_that_fail() -> None:
    check = HealthCheck("/health", 1.0, asyncio.get_running_loop().time)
    healthy = FakeSource({"a": serving(b"")})
    check.open = healthy.open  # type: ignore[method-assign, assignment]
    async with running(make_scraper(make_store("a"), Binding(check), is_adaptive=True)):
        await asyncio.sleep(100)
    assert 3.0 <= sum(gaps(healthy)[5:]) / len(gaps(healthy)[5:]) <= 5.0
    failing = FakeSource({"a": serving(then_fail=True)})
    check.open = failing.open  # type: ignore[method-assign, assignment]
    async with running(make_scraper(make_store("a"), Binding(check), is_adaptive=True)):
        await asyncio.sleep(100)
    assert {round(gap, 6) for gap in gaps(failing)[1:]} == {1.0}


async def test_idle_endpoints_are_scraped_several_at_a_time() -> None:
    source = FakeSource({str(n): serving(IDLE) for n in range(100)})
    async with adaptive(make_store(*map(str, range(100))), source):
        await asyncio.sleep(30)
    asked_at = [at for at in source.asked_at if at >= 10.0]
    assert len(set(asked_at)) < len(asked_at) / 5


async def test_an_endpoint_that_leaves_while_it_rests_is_not_scraped_again() -> None:
    source = FakeSource({"a": serving(IDLE), "b": serving(IDLE)})
    store = make_store("a", "b")
    async with adaptive(store, source):
        await asyncio.sleep(10)
        left = store.snapshot[1]
        store.replace_endpoints("test", [EndpointSpec("ns/0", "a")])
        assert [client.is_closed for client in source.clients] == [False, True]
        assert left.load.waiting_for_requests == []
        asked = len(source.asked_at)
        await asyncio.sleep(10)
        assert 7 <= len(source.asked_at) - asked <= 14  # the other one
    assert all(client.is_closed for client in source.clients)


async def test_sources_of_one_endpoint_begin_one_after_the_other() -> None:
    first, second = [FakeSource({"a": serving(IDLE)}, name=name) for name in ("first", "second")]
    bindings = [Binding(source, [LoadExtractor(source.name)]) for source in (first, second)]
    async with running(make_scraper(make_store("a"), *bindings, is_adaptive=True)):
        await asyncio.sleep(0.3)
    assert first.asked_at[0] == 0.0
    assert second.asked_at[0] == pytest.approx(0.05)
