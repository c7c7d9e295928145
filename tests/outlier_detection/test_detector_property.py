"""Any order of evidence: never too many ejections, and no working endpoint stays ejected."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from outlier_detection.test_detector import HEALTH, SOURCE

from epp.outlier_detection import OutlierDetector, OutlierSettings
from epp.scheduling import Endpoint

SLOTS = st.integers(0, 9)
MAX_EJECTION = OutlierSettings().max_ejection_seconds


class Evidence(RuleBasedStateMachine):
    """A pool in which anything happens."""

    @initialize(count=st.integers(1, 10), percent=st.integers(0, 100))
    def begin(self, count: int, percent: int) -> None:
        self.now = 0.0
        self.percent = percent
        self.pool = [
            Endpoint(f"default/{number}", f"10.0.0.{number}:80") for number in range(count)
        ]
        self.asked: dict[Endpoint, float] = {}
        self.detector = OutlierDetector(
            self.serving,
            settings=OutlierSettings(max_ejection_percent=percent),
            clock=lambda: self.now,
            rng=Random(0),
            waiting=lambda: [(each, SOURCE.name, at) for each, at in self.asked.items()],
        )
        for endpoint in self.pool:
            self.detector.endpoint_added(endpoint)

    def serving(self) -> list[Endpoint]:
        """Return the endpoints that are not draining."""
        kept = [each for each in self.pool if not each.is_draining]
        return self.pool if len(kept) == len(self.pool) else kept

    @rule(slot=SLOTS, is_draining=st.booleans())
    def drain(self, slot: int, is_draining: bool) -> None:
        self.pool[slot % len(self.pool)].is_draining = is_draining
        self.detector.check()

    @rule(
        slot=SLOTS, status=st.sampled_from([200, 404, 429, 500, 502, 503]), times=st.integers(1, 4)
    )
    def respond(self, slot: int, status: int, times: int) -> None:
        for _ in range(times):
            self.detector.responded(self.pool[slot % len(self.pool)], status)

    @rule(slot=SLOTS, kind=st.sampled_from(["connect", "reset", "timeout", "page"]))
    def fail_scrape(self, slot: int, kind: str) -> None:
        self.detector.poll_failed(SOURCE, self.pool[slot % len(self.pool)], kind)

    @rule(slot=SLOTS)
    def scrape(self, slot: int) -> None:
        self._scraped(self.pool[slot % len(self.pool)])

    @rule(slot=SLOTS, kind=st.sampled_from(["connect", "status", "timeout"]))
    def fail_health_check(self, slot: int, kind: str) -> None:
        self.detector.poll_failed(HEALTH, self.pool[slot % len(self.pool)], kind)

    @rule(slot=SLOTS)
    def pass_health_check(self, slot: int) -> None:
        self.detector.page_scraped(HEALTH, self.pool[slot % len(self.pool)], 0.01)

    @rule(slot=SLOTS, whole=st.integers(0, 50), broken=st.integers(0, 50))
    def end(self, slot: int, whole: int, broken: int) -> None:
        for is_whole in (*[True] * whole, *[False] * broken):
            self.detector.ended(self.pool[slot % len(self.pool)], is_whole=is_whole)

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.3, 1.0, 5.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.detector.check()

    @rule(slot=SLOTS)
    def replace(self, slot: int) -> None:
        old = self.pool[slot % len(self.pool)]
        new = Endpoint(old.name, old.address)
        self.pool[slot % len(self.pool)] = new
        self.detector.endpoint_removed(old)
        self.detector.endpoint_added(new)

    def _scraped(self, endpoint: Endpoint) -> None:
        """A page comes, and the next scrape begins at once."""
        self.asked[endpoint] = self.now
        self.detector.page_scraped(SOURCE, endpoint, 0.01)

    @invariant()
    def some_may_be_picked_and_not_too_many_are_out(self) -> None:
        serving = self.serving()
        available = self.detector.available()
        assert bool(available) is bool(serving)
        assert set(available) <= set(serving)
        out = [each for each in serving if not self.detector.may_be_picked(each)]
        assert len(out) <= max(1, len(serving) * self.percent // 100)

    def teardown(self) -> None:
        """From any state, endpoints that work are all used again after the longest ejection."""
        if not hasattr(self, "pool"):
            return
        for endpoint in self.pool:
            endpoint.is_draining = False
        for _ in range(round((MAX_EJECTION + 5.0) / 0.25)):
            self.now += 0.25
            for endpoint in self.pool:
                self._scraped(endpoint)
                self.detector.page_scraped(HEALTH, endpoint, 0.01)
                if endpoint in self.detector.available():
                    self.detector.responded(endpoint, 200)
            self.detector.check()
        for _ in range(200):  # a share of a tenth takes some requests to be drawn
            for endpoint in self.detector.available():
                self.detector.responded(endpoint, 200)
        self.now += 3.0
        for endpoint in self.pool:
            self._scraped(endpoint)
        self.detector.check()
        assert self.detector.available() is self.pool


TestEvidence = Evidence.TestCase
TestEvidence.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
