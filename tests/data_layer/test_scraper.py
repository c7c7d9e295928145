"""The scraper keeps pages fresh, keeps the last one through every fault, and doubts old ones."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from epp.data_layer import EndpointSpec, EndpointStore, Page, ScrapeError, Scraper
from epp.data_layer.errors import ScrapeConnectError
from epp.scheduling import Endpoint

from .metrics_server import PAGE, StartServer, answer_page, hang, reset


class Observer:
    """Remembers scrapes and lets a test wait for the next of them."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self._news: asyncio.Queue[str] = asyncio.Queue()

    def scrape_succeeded(self, endpoint: Endpoint, seconds: float) -> None:
        assert seconds >= 0
        self._news.put_nowait("")

    def scrape_failed(self, endpoint: Endpoint, kind: str) -> None:
        self.kinds.append(kind)
        self._news.put_nowait(kind)

    async def until(self, kind: str) -> None:
        """Wait for a scrape of this outcome, "" for a good one."""
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


async def test_pages_and_loads_of_a_pool_are_swapped(start_server: StartServer) -> None:
    first = await start_server(answer_page())
    second = await start_server(answer_page(PAGE.replace(b"waiting 3", b"waiting 8")))
    store, observer = make_store(first.address, second.address), Observer()
    async with running(Scraper(store, interval_seconds=0.01, observer=observer)) as scraper:
        for _ in range(10):
            await observer.until("")
        assert [e.metrics.waiting_requests for e in store.snapshot] == [3, 8]
        assert [e.load.waiting_requests for e in store.snapshot] == [3, 8]
        assert store.snapshot[0].load.slots == 2  # ran while others waited
        state = scraper.states["ns/0"]
        requested_at = state.endpoint.metrics.requested_at
        assert requested_at is not None
        assert state.age_seconds(requested_at + 1.5) == 1.5
        assert state.error_count == 0
    assert first.connections == 1


async def test_each_fault_keeps_the_last_page_and_is_told_once(start_server: StartServer) -> None:
    server = await start_server(answer_page())
    store, observer = make_store(server.address), Observer()
    scraper = Scraper(store, interval_seconds=0.01, timeout_seconds=0.05, observer=observer)
    with capture_logs() as logs:
        async with running(scraper):
            await observer.until("")
            for answer, kind in (
                (hang, "timeout"),
                (reset, "reset"),
                (answer_page(b"garbled"), "page"),
                (answer_page(status=b"500 Oops"), "status"),
            ):
                server.answer = answer
                await observer.until(kind)
                await observer.until(kind)
                assert store.snapshot[0].metrics.waiting_requests == 3
                last_error = scraper.states["ns/0"].last_error
                assert last_error is not None
                assert last_error.kind == kind
            assert scraper.states["ns/0"].error_count == len(observer.kinds)
            server.answer = answer_page()
            await observer.until("")
            assert scraper.states["ns/0"].last_error is None
    events = [(log["event"], log.get("kind")) for log in logs]
    assert events == [
        ("endpoint scrape failed", "timeout"),
        ("endpoint scrape failed", "reset"),
        ("endpoint scrape failed", "page"),
        ("endpoint scrape failed", "status"),
        ("endpoint scrape recovered", None),
    ]


async def test_a_server_that_refuses_is_counted() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        store, observer = make_store(f"127.0.0.1:{held.getsockname()[1]}"), Observer()
        async with running(Scraper(store, interval_seconds=0.01, observer=observer)):
            await observer.until("connect")
    assert store.snapshot[0].metrics.requested_at is None


async def test_endpoints_are_followed_as_they_come_and_go(start_server: StartServer) -> None:
    server = await start_server(answer_page())
    store, observer = make_store(), Observer()
    async with running(Scraper(store, interval_seconds=0.01, observer=observer)) as scraper:
        await asyncio.sleep(0)
        store.replace_endpoints("test", [EndpointSpec("ns/a", server.address)])
        await observer.until("")
        await server.request_came.wait()
        store.replace_endpoints("test", [])
        assert dict(scraper.states) == {}
        await server.writers[0].wait_closed()
    assert server.connections == 1
    store.replace_endpoints("test", [EndpointSpec("ns/b", server.address)])  # nobody listens


# From here on time is virtual.

Get = Callable[[], Awaitable[bytes]]


class FakeClient:
    """Serves pages without a socket."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self.closed = False

    async def get(self, path: str) -> Page:
        requested_at = asyncio.get_running_loop().time()
        return Page(await self._get(), requested_at)

    def close(self) -> None:
        self.closed = True


def page(waiting: int, running_: int = 0, usage: float = 0.0) -> bytes:
    return (
        f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running {running_}\n"
        f"vllm:kv_cache_usage_perc {usage}\n"
    ).encode()


def make_scraper(store: EndpointStore, gets: dict[str, Get]) -> Scraper:
    return Scraper(
        store,
        clock=asyncio.get_running_loop().time,
        open_client=lambda address: FakeClient(gets[address]),
    )


def serving(*pages: bytes, then_fail: bool = True) -> Get:
    """Serve each page once; then fail, or serve the last forever."""
    left = list(pages)

    async def get() -> bytes:
        if not left:
            raise ScrapeConnectError("refused")
        return left.pop(0) if then_fail or len(left) > 1 else left[0]

    return get


def beliefs(endpoints: Sequence[Endpoint]) -> list[float]:
    return [endpoint.load.waiting_requests for endpoint in endpoints]


@pytest.mark.looptime
async def test_an_old_page_fades_to_the_median_of_the_fresh_ones() -> None:
    store = make_store("old", "a", "b", "c")
    gets = {
        "old": serving(page(100, 10, 1.0)),
        "a": serving(page(0, 0, 0.0), then_fail=False),
        "b": serving(page(20, 2, 0.5), then_fail=False),
        "c": serving(page(50, 4, 0.6), then_fail=False),
    }
    async with running(make_scraper(store, gets)):
        old = store.snapshot[0]
        await asyncio.sleep(0.19)
        assert old.load.waiting_requests == 100
        await asyncio.sleep(0.27)  # the last pass was at 0.45: (0.45 - 0.2) / (10 * 0.05) = 0.5
        assert old.load.waiting_requests == pytest.approx(60, abs=0.1)  # between 100 and 20
        assert old.load.running_requests == pytest.approx(6, abs=0.1)
        assert old.load.kv_cache_usage == pytest.approx(0.75, abs=0.01)
        await asyncio.sleep(1)
        assert beliefs(store.snapshot) == [20, 0, 20, 50]
        assert old.metrics.waiting_requests == 100  # the page itself stays


@pytest.mark.looptime
async def test_a_recovered_endpoint_is_believed_at_once() -> None:
    store = make_store("a", "b")
    fail = True

    async def get() -> bytes:
        if fail:
            raise ScrapeConnectError("refused")
        return page(7)

    gets = {"a": get, "b": serving(page(40), then_fail=False)}
    async with running(make_scraper(store, gets)):
        await asyncio.sleep(1)
        assert beliefs(store.snapshot) == [40, 40]
        fail = False
        await asyncio.sleep(0.11)
        assert beliefs(store.snapshot) == [7, 40]


@pytest.mark.looptime
async def test_a_newcomer_counts_as_the_median_from_the_start() -> None:
    store = make_store("a", "b")
    gets = {
        "a": serving(page(10), then_fail=False),
        "b": serving(page(20), then_fail=False),
        "new": serving(),
    }
    async with running(make_scraper(store, gets)):
        await asyncio.sleep(0.12)
        specs = [EndpointSpec(f"ns/{i}", a) for i, a in enumerate(("a", "b", "new"))]
        store.replace_endpoints("test", specs)
        newcomer = store.snapshot[2]
        assert newcomer.load.waiting_requests == 15
        newcomer.load.start(asyncio.get_running_loop().time())
        assert newcomer.load.waiting_requests == 16  # and what we have sent it
        await asyncio.sleep(1)
        assert newcomer.load.waiting_requests == 16


@pytest.mark.looptime
async def test_with_nothing_fresh_the_last_known_pages_give_the_median() -> None:
    store = make_store("a", "b", "never")
    gets = {"a": serving(page(10)), "b": serving(page(20)), "never": serving()}
    async with running(make_scraper(store, gets)):
        await asyncio.sleep(2)
        assert beliefs(store.snapshot) == [15, 15, 15]


@pytest.mark.looptime
async def test_a_pool_never_scraped_is_believed_idle() -> None:
    store = make_store("never")
    async with running(make_scraper(store, {"never": serving()})):
        await asyncio.sleep(1)
        assert beliefs(store.snapshot) == [0]


@pytest.mark.looptime
async def test_slow_scrapes_do_not_overlap_and_are_no_reason_for_doubt() -> None:
    store = make_store("slow", "a")
    active = 0

    async def get() -> bytes:
        nonlocal active
        active += 1
        assert active == 1
        await asyncio.sleep(0.28)
        active -= 1
        return page(100)

    gets = {"slow": get, "a": serving(page(0), then_fail=False)}
    async with running(make_scraper(store, gets)) as scraper:
        await asyncio.sleep(1.5)
        for _ in range(40):  # ages reach 0.6 s, the threshold is 3 * 0.3
            await asyncio.sleep(0.05)
            assert store.snapshot[0].load.waiting_requests == 100
        assert scraper.states["ns/0"].interval_seconds == pytest.approx(0.3)


@pytest.mark.looptime
async def test_scrapes_start_at_once_keep_their_phase_and_are_spread() -> None:
    loop = asyncio.get_running_loop()
    sent: dict[str, list[float]] = {}

    def get(address: str) -> Get:
        async def answer() -> bytes:
            sent.setdefault(address, []).append(loop.time())
            await asyncio.sleep(0.003)
            return page(0)

        return answer

    addresses = [str(i) for i in range(10)]
    store = make_store(*addresses)
    start = loop.time()
    async with running(make_scraper(store, {a: get(a) for a in addresses})):
        await asyncio.sleep(2.02)
    phases = []
    for times in sent.values():
        assert times[0] == start
        assert len(times) in (41, 42)  # 2.02 s / 0.05 s, and the one at once
        gaps = {round(b - a, 6) for a, b in pairwise(times[1:])}
        assert gaps == {0.05}
        phases.append((times[-1] - start) % 0.05)
    phases.sort()
    assert all(b - a > 0.002 for a, b in pairwise(phases))


@pytest.mark.looptime
async def test_a_bug_in_a_client_is_not_taken_for_a_scrape_error() -> None:
    async def broken() -> bytes:
        raise KeyError("bug")

    store = make_store("a")
    with pytest.raises(ExceptionGroup) as caught:
        await make_scraper(store, {"a": broken}).run()
    assert caught.group_contains(KeyError)
    assert not caught.group_contains(ScrapeError)
