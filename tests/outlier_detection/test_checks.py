"""When the pool is checked, in virtual time: only when there may be something to find."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from outlier_detection.test_detector import SOURCE

from epp.outlier_detection import Checks, HealthState, OutlierDetector, OutlierSettings
from epp.scheduling import Endpoint
from epp.timetable import Timetable

pytestmark = pytest.mark.looptime

PAGE_SECONDS = 0.001
INTERVAL_SECONDS = 0.05


class Pool:
    """Endpoints whose pages come every 50 ms, and a detector that is run."""

    def __init__(self, count: int = 4, *, settings: OutlierSettings | None = None) -> None:
        self.time = asyncio.get_running_loop().time
        self.timetable = Timetable(self.time)
        self.endpoints = [Endpoint(f"default/{n}", f"10.0.0.{n}:80") for n in range(count)]
        self.hanging: set[Endpoint] = set()
        """Those whose scrapes get no response."""
        self.asked: dict[Endpoint, float] = {}
        self.checks = 0
        self.history: list[tuple[HealthState, float]] = []
        """States of the first endpoint, and when they began."""
        self.detector = OutlierDetector(
            lambda: self.endpoints,
            settings=settings or OutlierSettings(),
            clock=self.time,
            rng=Random(1),
            waiting=lambda: [(each, SOURCE.name, at) for each, at in self.asked.items()],
            changed=self._note,
        )
        self._check = self.detector.check
        self.detector.check = self._counted  # type: ignore[method-assign]
        for endpoint in self.endpoints:
            self.detector.endpoint_added(endpoint)

    def _counted(self) -> None:
        self.checks += 1
        self._check()

    def _note(self) -> None:
        health = self.detector.health_of(self.endpoints[0])
        assert health is not None
        if not self.history or self.history[-1][0] is not health.state:
            self.history.append((health.state, self.time()))

    def since(self, state: HealthState) -> float:
        """Return when the first endpoint entered a state."""
        (at,) = [at for entered, at in self.history if entered is state]
        return at

    async def checks_in_a_second(self) -> int:
        before = self.checks
        await asyncio.sleep(1.0)
        return self.checks - before

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(Checks(self.detector, self.timetable).run()),
                *(tasks.create_task(self._scrape(each)) for each in self.endpoints),
            ]
            yield
            for task in running:
                task.cancel()

    async def _scrape(self, endpoint: Endpoint) -> None:
        while True:
            self.asked[endpoint] = self.time()
            await asyncio.sleep(PAGE_SECONDS)
            if endpoint in self.hanging:
                await asyncio.Event().wait()
            del self.asked[endpoint]
            self.detector.page_scraped(SOURCE, endpoint, PAGE_SECONDS)
            await asyncio.sleep(INTERVAL_SECONDS - PAGE_SECONDS)


async def test_requests_in_flight_and_scrapes_on_their_way_cause_no_further_checks() -> None:
    pool = Pool()
    async with pool.running():
        for endpoint in pool.endpoints:
            endpoint.load.start(0.0)
        await asyncio.sleep(0.3)
        assert await pool.checks_in_a_second() <= 5


async def test_an_endpoint_that_is_not_healthy_does() -> None:
    pool = Pool()
    async with pool.running():
        await asyncio.sleep(0.31)
        pool.detector.responded(pool.endpoints[0], 500)
        before = pool.checks
        await asyncio.sleep(0.051)
        assert pool.checks == before + 1, "sooner than the last check has said"
        for _ in range(2):
            pool.detector.responded(pool.endpoints[0], 500)
        assert pool.history[-1][0] is HealthState.EJECTED
        assert await pool.checks_in_a_second() >= 19


@pytest.mark.parametrize("phase", [0.0, 0.03, 0.07, 0.11, 0.16, 0.2, 0.24])
async def test_a_hanging_endpoint_is_suspect_and_ejected_as_soon_as_with_checks_every_50_ms(
    phase: float,
) -> None:
    pool = Pool()
    hanging = pool.endpoints[0]
    async with pool.running():
        await asyncio.sleep(0.5 + phase)
        pool.hanging.add(hanging)
        await asyncio.sleep(INTERVAL_SECONDS)
        asked_at = pool.asked[hanging]
        await asyncio.sleep(1.0)
        assert 0.299 <= pool.since(HealthState.SUSPECT) - asked_at <= 0.36
        assert 0.399 <= pool.since(HealthState.EJECTED) - asked_at <= 0.51


@pytest.mark.parametrize("phase", [0.0, 0.06, 0.13, 0.2, 0.24])
async def test_a_short_ejection_for_responses_ends_within_50_ms_of_its_time(phase: float) -> None:
    pool = Pool(settings=OutlierSettings(base_ejection_seconds=0.1))
    async with pool.running():
        await asyncio.sleep(0.5 + phase)
        for _ in range(3):
            pool.detector.responded(pool.endpoints[0], 500)
        await asyncio.sleep(1.0)
        ejected_at = pool.since(HealthState.EJECTED)
        assert 0.0999 <= pool.since(HealthState.PROBING) - ejected_at <= 0.151


async def test_a_check_that_fails_ends_the_run_and_not_the_timetable() -> None:
    pool = Pool()
    started = asyncio.Event()

    def failing() -> None:
        raise KeyError("bug")

    pool.detector.check = failing  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="bug"):
        await Checks(pool.detector, pool.timetable).run()
    pool.timetable.add(0.0, started.set)
    await started.wait()


async def test_no_check_comes_after_the_end() -> None:
    pool = Pool()
    async with pool.running():
        await asyncio.sleep(0.5)
    before = pool.checks
    pool.detector.responded(pool.endpoints[0], 500)
    await asyncio.sleep(1.0)
    assert pool.checks == before
