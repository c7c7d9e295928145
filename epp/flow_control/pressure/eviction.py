"""In-flight eviction: requests whose answer has not begun make room for a higher band.

Kept are those that the filter accepts, from the step in which they are dispatched until their
answer begins or they end. When a session ends at a blocked band, as many of them are told to end as
the pool is too full by; then nobody is, until all of these have ended and what became free has had
time to show: else the next session would take more for the same want.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import ceil, inf, isfinite
from time import perf_counter
from typing import Any, NamedTuple

import structlog

from epp.flow_control.observer import RevocationObserver
from epp.flow_control.queues import InFlight, QueuedRequest, Revocable
from epp.flow_control.settings import EvictionSettings
from epp.scheduling import PLUGIN_FAULTS, LLMRequest, PluginContractError

_EARLY_SECONDS = 0.001
"""Timers of the event loop ring so much too early; uvloop rounds to milliseconds."""

log = structlog.get_logger()


class Demand(NamedTuple):
    """A band in which requests wait that the pool is too full for."""

    priority: int
    saturation: float
    ceiling: float
    in_flight: int
    """Requests that the pool has."""

    @property
    def target(self) -> float:
        """How much saturation is too much."""
        return self.saturation - self.ceiling

    @property
    def credit(self) -> float:
        """How much of it one request is taken to make up."""
        return self.saturation / max(1, self.in_flight)

    @property
    def victims(self) -> float:
        """How many requests make up the target; at least one, for it has to fall below.

        None of an idle pool: a ceiling that low is no matter of room.
        """
        if self.saturation <= 0.0:
            return 0.0
        return max(1.0, self.target / self.credit) if isfinite(self.target) else inf


class _Issued(NamedTuple):
    at: float
    credit: float


class Evictions:
    """Who may be evicted, and when; made in the event loop, and off until it has settings."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        observer: RevocationObserver,
        wake: Callable[[], None],
    ) -> None:
        """Wire it up.

        Args:
            clock: Monotonic seconds, the event loop's.
            observer: Is told of what happens.
            wake: Has a session opened if anything waits.
        """
        self._clock = clock
        self._observer = observer
        self._wake = wake
        self._settings: EvictionSettings | None = None
        self._kept: dict[InFlight, None] = {}
        self._issued: dict[InFlight, _Issued] = {}
        self._demand = Demand(0, 0.0, 0.0, 0)
        self._rests_until = -inf
        self._deadline: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Whether anybody is ever evicted."""
        return self._settings is not None

    def use(self, settings: EvictionSettings | None) -> None:
        """Go over to other settings; those under way are still seen to.

        Args:
            settings: None to evict nobody, and to keep nothing.
        """
        self._settings = settings
        if settings is None:
            self._kept.clear()
            self._silence()

    # --- requests -----------------------------------------------------------------------------

    def keep(self, revocable: Revocable) -> InFlight | None:
        """Take note of a request that was dispatched; return it if it may be evicted."""
        settings = self._settings
        if settings is None or not _accepts(settings, revocable.request):
            return None
        in_flight = InFlight(revocable, self._clock())
        self._kept[in_flight] = None
        return in_flight

    def spare(self, in_flight: InFlight) -> None:
        """Evict a request no more: its answer has begun."""
        self._kept.pop(in_flight, None)

    def ended(self, in_flight: InFlight) -> None:
        """Take note that a request has ended, whatever way."""
        self._kept.pop(in_flight, None)
        issued = self._issued.pop(in_flight, None)
        if issued is not None:
            now = self._clock()
            self._observer.ended("confirmed", now - issued.at)
            self._one_less(now)

    # --- decisions ----------------------------------------------------------------------------

    def choose(self, demand: Demand) -> tuple[Sequence[InFlight], int]:
        """Return who may be evicted for ``demand``, the first to go first, and how many of them.

        Nobody, and none, while evictions are under way or have not had time to show.
        """
        settings, now = self._settings, self._clock() + _EARLY_SECONDS
        wanted = demand.victims
        if settings is None or not wanted or self._issued or now < self._rests_until:
            return (), 0
        self._demand = demand
        lower = [each for each in self._kept if each.request.priority < demand.priority]
        least = settings.min_run_seconds
        ready = [each for each in lower if each.dispatched_at + least <= now]
        if not ready:
            if lower:
                self._ring_at(min(each.dispatched_at for each in lower) + least)
            return (), 0
        most = settings.max_per_decision
        count = most if wanted >= most else ceil(wanted)
        return _in_order(settings, ready), count

    def of(self, jobs: Sequence[QueuedRequest]) -> Sequence[InFlight]:
        """Return what is kept of ``jobs``.

        Raises:
            ValueError: One of them may not be evicted, or not any more.
        """
        wanted = set(jobs)
        found = [each for each in self._kept if each.revocable.queued in wanted]
        if len(found) < len(wanted):
            spared = wanted.difference(each.revocable.queued for each in found)
            names = ", ".join(sorted(each.name for each in spared))
            raise ValueError(
                f"{names} may not be evicted: the answer has begun, the eviction filter spares the"
                " request, or flowControl.enableEviction is off"
            )
        return found

    def revoke(self, victims: Sequence[InFlight]) -> None:
        """Tell ``victims``, which are kept, to end; decide nothing more until they have."""
        settings, now, demand = self._settings, self._clock(), self._demand
        assert settings is not None  # noqa: S101 - it has kept them
        for victim in victims:
            del self._kept[victim]
            self._issued[victim] = _Issued(now, demand.credit)
            self._observer.issued(victim.request.priority)
        self._tell()
        self._forget_deadline()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(settings.confirmation_seconds, self._timed_out)
        for victim in victims:  # each may end at once
            log.info(
                "request evicted",
                request_id=victim.request.request_id,
                priority=victim.request.priority,
                for_priority=demand.priority,
                running_seconds=round(now - victim.dispatched_at, 6),
            )
            try:
                victim.revocable.revoke()
            except Exception:
                log.exception("request could not be evicted", request_id=victim.request.request_id)

    def _timed_out(self) -> None:
        self._deadline = None
        now = self._clock()
        issued, self._issued = self._issued, {}
        for each in issued.values():
            self._observer.ended("timed_out", now - each.at)
        log.warning(
            "evicted requests were not seen to end",
            request_ids=[each.request.request_id for each in issued],
        )
        self._one_less(now)

    def _one_less(self, now: float) -> None:
        self._tell()
        if self._issued:
            return
        self._forget_deadline()
        if self._settings is not None:
            self._rests_until = now + self._settings.grace_seconds
            self._ring_at(self._rests_until)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _tell(self) -> None:
        pending = sum(each.credit for each in self._issued.values())
        self._observer.reclaim(target=self._demand.target, pending=pending)

    def _ring_at(self, at: float) -> None:
        """Have a session opened then; the last time asked for counts."""
        self._silence()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(max(0.0, at - self._clock()), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._wake()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _accepts(settings: EvictionSettings, request: LLMRequest) -> bool:
    """Ask the filter; one that fails spares everybody."""
    guard = settings.filter
    if guard.is_off:
        return False
    began = perf_counter()
    try:
        accepted = guard.plugin.accepts(request)
    except PLUGIN_FAULTS as error:
        guard.failed(error, perf_counter() - began)
        return False
    guard.passed(perf_counter() - began)
    return bool(accepted)


def _in_order(settings: EvictionSettings, victims: list[InFlight]) -> list[InFlight]:
    """Ask the order; in the place of one that fails the reference's stands."""
    guard = settings.order
    if guard.is_off:
        return sorted(victims, key=_lowest_then_newest)
    began = perf_counter()
    try:
        keys: dict[InFlight, Any] = {each: guard.plugin.key(each) for each in victims}
        if any(key != key for key in keys.values()):  # noqa: PLR0124 - NaN
            raise PluginContractError("key() returned NaN, which is neither less nor more")
        in_order = sorted(victims, key=keys.__getitem__)
    except PLUGIN_FAULTS as error:
        guard.failed(error, perf_counter() - began)
        return sorted(victims, key=_lowest_then_newest)
    guard.passed(perf_counter() - began)
    return in_order


def _lowest_then_newest(victim: InFlight) -> tuple[int, float]:
    return victim.request.priority, -victim.dispatched_at
