"""The scraper keeps pages fresh, keeps the last ones through faults, and marks old ones stale."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import pytest
from log_watch import Logs
from structlog.testing import capture_logs

from epp.data_layer import EndpointSpec, EndpointStore, Page, PageError, Scraper, page_opener
from epp.data_layer.errors import ScrapeConnectError
from epp.data_layer.load_estimates import LoadEstimates
from epp.data_layer.plugins import DataSource, Extractor, PageClient
from epp.scheduling import AttributeKey, Endpoint, EndpointMetrics

from .metrics_server import StartServer, hang, page_response, reset
from .scraping import Binding, Observer, make_store, running

MODEL = AttributeKey[str]("model/test")


class LoadExtractor(Extractor):
    """Reads ``WAITING RUNNING KV-USAGE``."""

    type: ClassVar[str] = "load-extractor"

    def __init__(self, name: str = "load") -> None:
        self.name = name

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        try:
            waiting, running_, usage = page.body.split()
            endpoint.metrics = EndpointMetrics(int(waiting), int(running_), float(usage))
        except ValueError:
            raise PageError("not three numbers") from None


class ModelExtractor(Extractor):
    """Keeps the whole page as an attribute."""

    type: ClassVar[str] = "model-extractor"
    writes = (MODEL,)

    def __init__(self, name: str = "model") -> None:
        self.name = name

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        endpoint.attributes[MODEL] = page.body.decode()


class BrokenExtractor(Extractor):
    type: ClassVar[str] = "broken-extractor"
    name = "broken"

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        raise KeyError("bug")


class SocketSource(DataSource):
    """Asks over real connections."""

    type: ClassVar[str] = "socket-source"
    name = "socket"

    def open(self, endpoint: Endpoint) -> PageClient:
        return page_opener(time.monotonic)(endpoint.address, "/metrics")


def make_socket_scraper(store: EndpointStore, observer: Observer, **options: float) -> Scraper:
    return Scraper(
        store,
        [Binding(SocketSource(), [LoadExtractor()])],
        interval_seconds=0.01,
        observer=observer,
        **options,  # type: ignore[arg-type] # seconds only
    )


async def test_pages_and_loads_of_a_pool_are_swapped(start_server: StartServer) -> None:
    first = await start_server(page_response(b"3 2 0.25"))
    second = await start_server(page_response(b"8 2 0.25"))
    store, observer = make_store(first.address, second.address), Observer()
    async with running(make_socket_scraper(store, observer)) as scraper:
        for _ in range(10):
            await observer.until("")
        assert [e.metrics.waiting_requests for e in store.snapshot] == [3, 8]
        assert [e.load.waiting_requests for e in store.snapshot] == [3, 8]
        assert store.snapshot[0].load.slots == 2  # ran while others waited
        requested_at = store.snapshot[0].metrics.requested_at
        assert requested_at is not None  # the page's, as the extractor gave none
        assert scraper.ages["ns/0"].seconds(requested_at + 1.5) == 1.5
        assert scraper.states["ns/0", "socket"].polls.total == 0
    assert first.connections == 1


async def test_each_fault_keeps_the_last_page_and_is_logged_once(
    start_server: StartServer,
) -> None:
    server = await start_server(page_response(b"3 2 0.25"))
    store, observer = make_store(server.address), Observer()
    with capture_logs() as logs:
        async with running(make_socket_scraper(store, observer, timeout_seconds=0.05)) as scraper:
            await observer.until("")
            state = scraper.states["ns/0", "socket"]
            for response, kind in (
                (hang, "timeout"),
                (reset, "reset"),
                (page_response(status=b"500 Oops"), "status"),
            ):
                server.respond = response
                await observer.until(kind)
                await observer.until(kind)
                assert store.snapshot[0].metrics.waiting_requests == 3
                assert state.polls.last is not None
                assert state.polls.last.kind == kind
            assert state.polls.total == len(observer.kinds)
            server.respond = page_response(b"garbled")
            await observer.until("extract page")
            await observer.until("extract page")
            assert store.snapshot[0].metrics.waiting_requests == 3
            assert state.polls.last is None
            assert state.extracts["load"].in_a_row >= 2
            server.respond = page_response(b"4 2 0.25")
            await observer.until("")
            while store.snapshot[0].metrics.waiting_requests != 4:
                await observer.until("")
    assert set(observer.extract_errors) == {("socket-source", "load-extractor", "page")}
    assert [(log["event"], log["plugin"], log.get("kind")) for log in logs] == [
        ("endpoint scrape failed", "socket", "timeout"),
        ("endpoint scrape failed", "socket", "reset"),
        ("endpoint scrape failed", "socket", "status"),
        ("endpoint scrape recovered", "socket", None),
        ("endpoint page not understood", "load", "page"),
        ("endpoint page understood again", "load", None),
    ]


@pytest.mark.usefixtures("debug_level")
async def test_at_level_debug_repeated_faults_are_reported_as_well(
    start_server: StartServer,
) -> None:
    server = await start_server(page_response(status=b"500 Oops"))
    store, observer = make_store(server.address), Observer()
    with capture_logs() as logs:
        async with running(make_socket_scraper(store, observer)):
            await observer.until("status")
            await observer.until("status")
            server.respond = page_response(b"garbled")
            await observer.until("extract page")
            await observer.until("extract page")
    logged = [
        (log["event"], log["log_level"], log["plugin"], log.get("failures"))
        for log in logs
        if log["event"].startswith("endpoint ") and log["event"] != "endpoint scrape recovered"
    ]
    assert ("endpoint scrape failed", "warning", "socket", None) in logged
    assert ("endpoint scrape failed again", "debug", "socket", 2) in logged
    assert ("endpoint page not understood", "warning", "load", None) in logged
    assert ("endpoint page not understood again", "debug", "load", 2) in logged


async def test_a_server_that_refuses_is_counted() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        store, observer = make_store(f"127.0.0.1:{held.getsockname()[1]}"), Observer()
        async with running(make_socket_scraper(store, observer)):
            await observer.until("connect")
    assert store.snapshot[0].metrics.requested_at is None


async def test_endpoints_are_followed_as_they_come_and_go(start_server: StartServer) -> None:
    server = await start_server(page_response(b"3 2 0.25"))
    store, observer = make_store(), Observer()
    async with running(make_socket_scraper(store, observer)) as scraper:
        await asyncio.sleep(0)
        store.replace_endpoints("test", [EndpointSpec("ns/a", server.address)])
        await observer.until("")
        await server.request_came.wait()
        store.replace_endpoints("test", [])
        assert dict(scraper.states) == {}
        assert dict(scraper.ages) == {}
        await server.writers[0].wait_closed()
    assert server.connections == 1
    store.replace_endpoints("test", [EndpointSpec("ns/b", server.address)])  # nobody listens


# From here on time is virtual.

Get = Callable[[], Awaitable[bytes]]


class FakeClient:
    """Serves pages without a socket."""

    def __init__(self, get: Get, asked_at: list[float]) -> None:
        self._get = get
        self._asked_at = asked_at
        self.is_closed = False

    async def get(self) -> Page:
        requested_at = asyncio.get_running_loop().time()
        self._asked_at.append(requested_at)
        return Page(await self._get(), requested_at)

    def close(self) -> None:
        self.is_closed = True


class FakeSource(DataSource):
    """Asks functions, one by address."""

    type: ClassVar[str] = "fake-source"

    def __init__(
        self, gets: dict[str, Get], *, name: str = "fake", interval_seconds: float = 0.0
    ) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self.clients: list[FakeClient] = []
        self.asked_at: list[float] = []
        self._gets = gets

    def open(self, endpoint: Endpoint) -> PageClient:
        self.clients.append(FakeClient(self._gets[endpoint.address], self.asked_at))
        return self.clients[-1]


def page(waiting: int, running_: int = 0, usage: float = 0.0) -> bytes:
    return f"{waiting} {running_} {usage}".encode()


def make_scraper(
    store: EndpointStore,
    *bindings: Binding,
    observer: Observer | None = None,
    is_adaptive: bool = False,
) -> Scraper:
    return Scraper(
        store,
        bindings,
        clock=asyncio.get_running_loop().time,
        observer=observer or Observer(),
        is_adaptive=is_adaptive,
        random=Random(1).random,
    )


def loads(gets: dict[str, Get]) -> Binding:
    return Binding(FakeSource(gets), [LoadExtractor()])


def serving(*pages: bytes, then_fail: bool = False) -> Get:
    """Serve each page once; then fail, or serve the last forever."""
    left = list(pages)

    async def get() -> bytes:
        if not left:
            raise ScrapeConnectError("refused")
        return left.pop(0) if then_fail or len(left) > 1 else left[0]

    return get


def load_estimates(endpoints: Sequence[Endpoint]) -> list[float]:
    return [endpoint.load.waiting_requests for endpoint in endpoints]


@pytest.mark.looptime
async def test_an_old_page_fades_to_the_median_of_the_fresh_ones() -> None:
    store = make_store("old", "a", "b", "c")
    gets = {
        "old": serving(page(100, 10, 1.0), then_fail=True),
        "a": serving(page(0, 0, 0.0)),
        "b": serving(page(20, 2, 0.5)),
        "c": serving(page(50, 4, 0.6)),
    }
    async with running(make_scraper(store, loads(gets))):
        old = store.snapshot[0]
        await asyncio.sleep(0.19)
        assert old.load.waiting_requests == 100
        # The last pass was at 0.45, or up to 10 ms earlier: (0.45 - 0.2) / (10 * 0.05) = 0.5.
        await asyncio.sleep(0.27)
        assert old.load.waiting_requests == pytest.approx(60, abs=1.7)  # between 100 and 20
        assert old.load.running_requests == pytest.approx(6, abs=0.17)
        assert old.load.kv_cache_usage == pytest.approx(0.75, abs=0.01)
        await asyncio.sleep(1)
        assert load_estimates(store.snapshot) == [20, 0, 20, 50]
        assert old.metrics.waiting_requests == 100  # the page itself stays


@pytest.mark.looptime
async def test_the_process_rarely_looks_for_stale_metrics_while_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    age = LoadEstimates.age

    def counted(estimates: LoadEstimates) -> None:
        nonlocal looks
        looks += 1
        age(estimates)

    monkeypatch.setattr(LoadEstimates, "age", counted)
    is_away = False

    async def get() -> bytes:
        if is_away:
            raise ScrapeConnectError("refused")
        return page(7)

    store = make_store("a", "b")
    async with running(make_scraper(store, loads({"a": get, "b": serving(page(40))}))):
        await asyncio.sleep(1)
        looks = 0
        await asyncio.sleep(1)
        assert looks <= 7
        is_away = True
        await asyncio.sleep(0.5)
        looks = 0
        await asyncio.sleep(1)
        assert looks >= 19


@pytest.mark.looptime
async def test_a_scrape_that_starts_late_is_observed_with_its_lag() -> None:
    store, observer, loop = make_store("a"), Observer(), asyncio.get_running_loop()
    blocked_seconds = 0.0
    binding = loads({"a": serving(page(1))})
    scraper = Scraper(
        store,
        [binding],
        clock=lambda: loop.time() + blocked_seconds,
        observer=observer,
        is_adaptive=False,
    )
    async with running(scraper):
        await asyncio.sleep(0.12)
        before = len(observer.lags)
        blocked_seconds = 0.03  # the timers of the event loop are late by this
        await asyncio.sleep(0.12)
        on_time = pytest.approx(0.0, abs=1e-3)
        assert observer.lags == [
            *([on_time] * before),
            pytest.approx(0.03, abs=1e-3),
            *([on_time] * (len(observer.lags) - before - 1)),
        ]
        assert 0 < before < len(observer.lags) - 1


@pytest.mark.looptime
async def test_a_recovered_endpoint_is_believed_at_once() -> None:
    store = make_store("a", "b")
    fail = True

    async def get() -> bytes:
        if fail:
            raise ScrapeConnectError("refused")
        return page(7)

    async with running(make_scraper(store, loads({"a": get, "b": serving(page(40))}))):
        await asyncio.sleep(1)
        assert load_estimates(store.snapshot) == [40, 40]
        fail = False
        await asyncio.sleep(0.11)
        assert load_estimates(store.snapshot) == [7, 40]


@pytest.mark.looptime
async def test_a_newcomer_counts_as_the_median_from_the_start() -> None:
    store = make_store("a", "b")
    gets = {"a": serving(page(10)), "b": serving(page(20)), "new": serving()}
    async with running(make_scraper(store, loads(gets))):
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
    gets = {
        "a": serving(page(10), then_fail=True),
        "b": serving(page(20), then_fail=True),
        "never": serving(),
    }
    async with running(make_scraper(store, loads(gets))):
        await asyncio.sleep(2)
        assert load_estimates(store.snapshot) == [15, 15, 15]


@pytest.mark.looptime
async def test_a_pool_never_scraped_is_believed_idle() -> None:
    store = make_store("never")
    async with running(make_scraper(store, loads({"never": serving()}))):
        await asyncio.sleep(1)
        assert load_estimates(store.snapshot) == [0]


@pytest.mark.looptime
@pytest.mark.parametrize(
    "others",
    [
        pytest.param([], id="alone"),
        pytest.param([BrokenExtractor()], id="beside an extractor that fails"),
    ],
)
async def test_slow_scrapes_do_not_overlap_and_are_no_reason_for_doubt(
    others: list[Extractor], logs: Logs
) -> None:
    store = make_store("slow", "a")
    active = 0

    async def get() -> bytes:
        nonlocal active
        active += 1
        assert active == 1
        await asyncio.sleep(0.28)
        active -= 1
        return page(100)

    source = FakeSource({"slow": get, "a": serving(page(0))})
    async with running(make_scraper(store, Binding(source, [*others, LoadExtractor()]))) as scraper:
        await asyncio.sleep(1.5)
        for _ in range(40):  # ages reach 0.6 s, the threshold is 3 * 0.3
            await asyncio.sleep(0.05)
            assert store.snapshot[0].load.waiting_requests == 100
        assert scraper.ages["ns/0"].interval_seconds == pytest.approx(0.3)
    logged = [entry for entry in logs.entries if entry["event"] == "endpoint page not understood"]
    assert len(logged) == len(others)


@pytest.mark.looptime
async def test_metrics_that_are_asked_for_seldom_are_doubted_by_their_own_interval() -> None:
    store = make_store("a", "b")
    gets = {"a": serving(page(7), then_fail=True), "b": serving(page(40))}
    source = FakeSource(gets, interval_seconds=2.0)
    async with running(make_scraper(store, Binding(source, [LoadExtractor()]))):
        await asyncio.sleep(5.9)
        assert load_estimates(store.snapshot) == [7, 40]
        await asyncio.sleep(10.1)  # half of the ten intervals beyond 3 * 2 s
        assert load_estimates(store.snapshot) == [pytest.approx((7 + 40) / 2, abs=0.2), 40]


@pytest.mark.looptime
async def test_scrapes_start_at_once_keep_their_phase_and_start_a_few_together() -> None:
    loop = asyncio.get_running_loop()
    sent: dict[str, list[float]] = {}

    def get(address: str) -> Get:
        async def respond() -> bytes:
            sent.setdefault(address, []).append(loop.time())
            await asyncio.sleep(0.003)
            return page(0)

        return respond

    addresses = [str(i) for i in range(10)]
    start = loop.time()
    async with running(make_scraper(make_store(*addresses), loads({a: get(a) for a in addresses}))):
        await asyncio.sleep(2.02)
    later: list[float] = []
    for times in sent.values():
        assert times[0] == start
        assert len(times) in (41, 42)  # 2.02 s / 0.05 s, and the one at once
        assert all(0.04 <= b - a <= 0.06 for a, b in pairwise(times[1:]))
        later += times[1:]
    together = Counter(round(at, 3) for at in later)
    assert max(together.values()) <= 4
    assert 3 * 40 <= len(together) <= 6 * 40  # moments at which the process wakes up


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("interval_seconds", "gap"),
    [
        pytest.param(0.0, 0.05, id="the process's own"),
        pytest.param(0.001, 0.05, id="not below 50 ms"),
        pytest.param(0.7, 0.7, id="the source's"),
    ],
)
async def test_every_source_has_its_interval(interval_seconds: float, gap: float) -> None:
    source = FakeSource({"a": serving(b"x")}, interval_seconds=interval_seconds)
    async with running(make_scraper(make_store("a"), Binding(source))):
        await asyncio.sleep(5)
    gaps = [after - before for before, after in pairwise(source.asked_at[1:])]
    assert sum(gaps) / len(gaps) == pytest.approx(gap, rel=0.05)
    assert all(each == pytest.approx(gap, rel=0.21) for each in gaps)


class UnopenableSource(FakeSource):
    def open(self, endpoint: Endpoint) -> PageClient:
        raise RuntimeError("bug in open")


async def raising() -> bytes:
    raise KeyError("bug in get")


@pytest.mark.looptime
async def test_the_bugs_of_plugins_stay_with_them_and_are_reported_once() -> None:
    store, observer = make_store("a", "b"), Observer()
    good = {"a": serving(page(3)), "b": serving(page(4))}
    bad: dict[str, Get] = {"a": raising, "b": raising}
    with capture_logs() as logs:
        async with running(
            make_scraper(
                store,
                Binding(UnopenableSource(good, name="unopenable"), [LoadExtractor()]),
                Binding(FakeSource(bad, name="raising"), [LoadExtractor("second")]),
                Binding(FakeSource(good), [BrokenExtractor(), LoadExtractor("third")]),
                observer=observer,
            )
        ):
            await asyncio.sleep(1)
            assert [e.metrics.waiting_requests for e in store.snapshot] == [3, 4]
            assert load_estimates(store.snapshot) == [3, 4]
    assert set(observer.kinds) == {"plugin"}
    assert set(observer.extract_errors) == {("fake-source", "broken-extractor", "plugin")}
    assert len(observer.extract_errors) > 2
    assert [(log["event"], log["plugin"], log["error"]) for log in logs] == [
        ("endpoint scrape failed", "unopenable", "RuntimeError: bug in open"),
        ("endpoint scrape failed", "raising", "KeyError: 'bug in get'"),
        ("endpoint page not understood", "broken", "KeyError: 'bug'"),
    ]
    assert all(log["exc_info"] for log in logs)


class WritingExtractor(Extractor):
    """Writes anything, as nothing keeps a plugin from doing so."""

    type: ClassVar[str] = "writing-extractor"
    name = "writing"

    def __init__(self, value: object) -> None:
        self._value = value

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        endpoint.metrics = self._value  # type: ignore[assignment]


@pytest.mark.looptime
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="nothing"),
        pytest.param({"waiting_requests": 1}, id="a dict"),
        pytest.param(EndpointMetrics("3"), id="a text"),  # type: ignore[arg-type]
        pytest.param(EndpointMetrics(kv_cache_usage=float("nan")), id="NaN"),
        pytest.param(EndpointMetrics(running_requests=-1), id="less than none"),
        pytest.param(EndpointMetrics(requested_at="now"), id="no time"),  # type: ignore[arg-type]
    ],
)
async def test_metrics_that_cannot_be_reckoned_with_are_their_extractors_fault(
    value: object,
) -> None:
    store, observer = make_store("a"), Observer()
    binding = Binding(
        FakeSource({"a": serving(page(3))}), [LoadExtractor(), WritingExtractor(value)]
    )
    with capture_logs() as logs:
        async with running(make_scraper(store, binding, observer=observer)):
            await asyncio.sleep(1)
            assert store.snapshot[0].metrics.waiting_requests == 3
            assert load_estimates(store.snapshot) == [3]
    assert set(observer.extract_errors) == {("fake-source", "writing-extractor", "plugin")}
    (entry,) = logs
    assert (entry["plugin"], entry["error"]) == (
        "writing",
        f"it wrote {value!r} to endpoint.metrics",
    )


class WrongClient(FakeClient):
    """Gives what is no page, and cannot be closed."""

    def __init__(self, response: object) -> None:
        super().__init__(serving(b""), [])
        self._response = response

    async def get(self) -> Page:
        return self._response  # type: ignore[return-value]

    def close(self) -> None:
        raise RuntimeError("bug in close")


class WrongSource(FakeSource):
    def __init__(self, response: object) -> None:
        super().__init__({}, name="wrong")
        self._response = response

    def open(self, endpoint: Endpoint) -> PageClient:
        return WrongClient(self._response)


@pytest.mark.looptime
@pytest.mark.parametrize("response", [None, b"1 2 3", Page(b"1 2 3", None)])  # type: ignore[arg-type]
async def test_a_client_that_gives_no_page_and_fails_to_close_harms_nobody_else(
    response: object,
) -> None:
    store, observer = make_store("a"), Observer()
    good = Binding(FakeSource({"a": serving(page(3)), "b": serving(page(4))}), [LoadExtractor()])
    wrong = Binding(WrongSource(response), [LoadExtractor("second")])
    with capture_logs() as logs:
        async with running(make_scraper(store, good, wrong, observer=observer)):
            await asyncio.sleep(0.5)
            store.replace_endpoints("test", [EndpointSpec("ns/1", "b")])
            await asyncio.sleep(0.5)
            assert load_estimates(store.snapshot) == [4]
    assert set(observer.kinds) == {"plugin"}
    failures = [log["error"] for log in logs if log["event"] == "endpoint scrape failed"]
    assert f"its client gave {response!r}, which is no Page" in failures
    assert "RuntimeError: bug in close" in failures


@pytest.mark.looptime
@pytest.mark.parametrize("interval", [None, "1s", float("inf"), float("nan"), -1.0])
async def test_an_interval_that_is_none_is_reported_and_the_processs_own_holds(
    interval: Any,
) -> None:
    store = make_store("a")
    source = FakeSource({"a": serving(page(3))}, interval_seconds=interval)
    with capture_logs() as logs:
        async with running(make_scraper(store, Binding(source, [LoadExtractor()]))):
            await asyncio.sleep(1.01)
    assert len(source.asked_at) in (21, 22)  # every 0.05 s, and once at the start
    (entry,) = logs
    assert (entry["event"], entry["source"]) == (
        "source interval ignored, not a number of seconds",
        "fake",
    )


@pytest.mark.looptime
async def test_a_swap_of_sources_leaves_what_is_unchanged_alone() -> None:
    store = make_store("a")
    kept = FakeSource({"a": serving(page(3))}, name="kept")
    load = LoadExtractor()
    old = FakeSource({"a": serving(b"llama")}, name="old")
    new = FakeSource({"a": serving(b"qwen")}, name="new")
    async with running(
        make_scraper(store, Binding(kept, [load]), Binding(old, [ModelExtractor()]))
    ) as scraper:
        await asyncio.sleep(0.5)
        endpoint = store.snapshot[0]
        assert endpoint.attribute(MODEL) == "llama"
        asked, old_asked = len(kept.asked_at), len(old.asked_at)
        for _ in range(20):  # again and again, as many reloads would
            scraper.use([Binding(kept, [load]), Binding(new, [ModelExtractor()])])
            model = endpoint.attribute(MODEL)
            assert model in {"llama", "qwen"}  # never gone in between
            await asyncio.sleep(0.05)
        assert endpoint.attribute(MODEL) == "qwen"
        assert len(kept.clients) == 1
        assert not kept.clients[0].is_closed
        assert len(kept.asked_at) - asked == 20  # 20 * 0.05 s, its own phase all the while
        assert len(old.asked_at) == old_asked
        assert [client.is_closed for client in old.clients] == [True]
        assert set(scraper.states) == {("ns/0", "kept"), ("ns/0", "new")}
        assert all(client.is_closed for client in new.clients[:-1])


@pytest.mark.looptime
async def test_what_nobody_writes_any_more_is_taken_off_and_metrics_stay() -> None:
    store = make_store("a")
    scraper = make_scraper(
        store,
        loads({"a": serving(page(3))}),
        Binding(FakeSource({"a": serving(b"llama")}, name="model"), [ModelExtractor()]),
    )
    async with running(scraper):
        await asyncio.sleep(0.1)
        scraper.use([])
        endpoint = store.snapshot[0]
        assert endpoint.attribute(MODEL) is None
        assert endpoint.metrics.waiting_requests == 3
        assert dict(scraper.states) == {}
        await asyncio.sleep(0.1)
        store.replace_endpoints("test", [])  # an endpoint without a task leaves as well
        assert dict(scraper.ages) == {}


async def test_sources_may_be_given_before_the_scraper_runs(start_server: StartServer) -> None:
    server = await start_server(page_response(b"3 2 0.25"))
    store, observer = make_store(server.address), Observer()
    scraper = Scraper(store, interval_seconds=0.01, observer=observer)
    scraper.use([Binding(SocketSource(), [LoadExtractor()])])
    async with running(scraper):
        await observer.until("")
        assert store.snapshot[0].metrics.waiting_requests == 3


@pytest.mark.looptime
async def test_reloads_under_load_lose_no_page_of_a_busy_pool() -> None:
    addresses = [str(index) for index in range(30)]
    store, observer = make_store(*addresses), Observer()
    gets = {address: serving(page(1)) for address in addresses}
    kept = Binding(FakeSource(gets, name="kept"), [LoadExtractor()])
    scraper = make_scraper(store, kept, observer=observer)
    async with running(scraper):
        for turn in range(50):
            others = [Binding(FakeSource(gets, name=f"s{turn}"), [ModelExtractor()])]
            scraper.use([kept, *others] if turn % 5 else [kept])
            wanted = addresses if turn % 3 else addresses[: len(addresses) // 2]
            specs = [EndpointSpec(f"ns/{address}", address) for address in wanted]
            store.replace_endpoints("test", specs)
            await asyncio.sleep(0.031)
        assert {name for name, _ in scraper.states} == {e.name for e in store.snapshot}
        assert all(e.metrics.waiting_requests == 1 for e in store.snapshot)
    assert observer.kinds == []
    assert observer.extract_errors == []
