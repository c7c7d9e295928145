"""Pages without the load leave the old load, which becomes stale; their cache usage counts."""

import asyncio

import pytest

from epp.data_layer import EndpointStore, Scraper
from epp_plugins.data_sources.core_metrics import CoreMetricsExtractor, Params

from .scraping import Binding, make_store, running
from .test_scraper import FakeSource, Get, make_scraper, serving


def scraping(store: EndpointStore, gets: dict[str, Get]) -> Scraper:
    source = FakeSource(gets)
    return make_scraper(store, Binding(source, [CoreMetricsExtractor("core", Params())]))


def page(waiting: int | None, usage: float) -> bytes:
    lines = [f"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc {usage}\n"]
    if waiting is not None:
        lines.append(f"vllm:num_requests_waiting {waiting}\n")
    return b"\n" + "".join(lines).encode()


@pytest.mark.looptime
async def test_a_load_that_is_no_longer_on_the_page_fades_to_the_pools() -> None:
    store = make_store("a", "b", "c")
    gets = {
        "a": serving(page(9, 0.1), page(None, 0.75)),
        "b": serving(page(4, 0.2)),
        "c": serving(page(4, 0.2)),
    }
    async with running(scraping(store, gets)):
        endpoint = store.snapshot[0]
        await asyncio.sleep(0.01)
        assert endpoint.load.waiting_requests == 9
        await asyncio.sleep(0.1)
        assert (endpoint.load.waiting_requests, endpoint.load.kv_cache_usage) == (9, 0.75)
        requested_at = endpoint.metrics.requested_at
        await asyncio.sleep(2.0)
        assert (endpoint.load.waiting_requests, endpoint.load.kv_cache_usage) == (4, 0.75)
        assert endpoint.metrics.requested_at == requested_at


@pytest.mark.looptime
async def test_a_server_without_a_queue_length_is_not_idle() -> None:
    store = make_store("a", "b")
    gets = {"a": serving(page(None, 0.75)), "b": serving(page(4, 0.2))}
    async with running(scraping(store, gets)):
        await asyncio.sleep(1.0)
        assert [each.load.waiting_requests for each in store.snapshot] == [4, 4]
        assert store.snapshot[0].load.kv_cache_usage == 0.75
