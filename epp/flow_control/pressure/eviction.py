"""In-flight eviction: requests whose response has not begun are ended for a higher band.

A request that the filter accepts can be evicted from its dispatch until its response begins or it
ends. When a session ends at a blocked band, as many requests are evicted as the pool is too full
by. No more are evicted until all of these have ended and the freed capacity has had time to show in
the metrics; otherwise the next session would evict twice for one shortage.
"""

import asyncio
from collections.abc import Sequence
from math import ceil, inf, isfinite
from time import perf_counter
from typing import Any, NamedTuple

import structlog

from epp.flow_control.flows import InFlight, QueuedRequest, Revocable
from epp.flow_control.interfaces import FlowHost, RevocationObserver
from epp.flow_control.settings import EvictionSettings
from epp.scheduling import PLUGIN_FAULTS, LLMRequest, PluginContractError

_EARLY_SECONDS = 0.001
"""Timers of the event loop may fire this much too early; uvloop rounds to milliseconds."""

log = structlog.get_logger(__name__)


class Demand(NamedTuple):
    """The shortage of a blocked band, whose requests wait because the pool is too full."""

    priority: int
    saturation: float
    ceiling: float
    in_flight: int
    """Requests in flight in the pool."""

    @property
    def target(self) -> float:
        """By how much the saturation exceeds the ceiling."""
        return self.saturation - self.ceiling

    @property
    def credit(self) -> float:
        """The saturation that one request is assumed to cause."""
        return self.saturation / max(1, self.in_flight)

    @property
    def victims(self) -> float:
        """How many requests cause the excess; at least one, as the saturation must fall below.

        It is 0 for an idle pool: a ceiling of 0 is policy, not a shortage of capacity.
        """
        if self.saturation <= 0.0:
            return 0.0
        return max(1.0, self.target / self.credit) if isfinite(self.target) else inf


class _Issued(NamedTuple):
    at: float
    credit: float


class Evictions:
    """The requests that can be evicted, and the evictions under way; off without settings."""

    def __init__(self, host: FlowHost, observer: RevocationObserver) -> None:
        self._host = host
        self._observer = observer
        self._settings: EvictionSettings | None = None
        self._kept: dict[InFlight, None] = {}
        self._issued: dict[InFlight, _Issued] = {}
        self._demand = Demand(0, 0.0, 0.0, 0)
        self._paused_until = -inf
        self._deadline: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Whether requests are evicted at all."""
        return self._settings is not None

    def use(self, settings: EvictionSettings | None) -> None:
        """Apply other settings; evictions under way are completed.

        Args:
            settings: None turns eviction off.
        """
        self._settings = settings
        if settings is None:
            self._kept.clear()
            self._cancel_alarm()

    # --- requests ---------------------------------------------------------------------------------

    def keep(self, revocable: Revocable) -> InFlight | None:
        """Register a dispatched request; return its record if it can be evicted."""
        settings = self._settings
        if settings is None or not _accepts(settings, revocable.request):
            return None
        in_flight = InFlight(revocable, self._host.now())
        self._kept[in_flight] = None
        return in_flight

    def add(self, in_flight: InFlight) -> None:
        """Register a request that another process has sent and that its filter has accepted."""
        if self._settings is not None:
            self._kept[in_flight] = None

    def spare(self, in_flight: InFlight) -> None:
        """Exempt a request from eviction: its response has begun."""
        self._kept.pop(in_flight, None)

    def ended(self, in_flight: InFlight) -> None:
        """Note the end of a request, evicted or not."""
        self._kept.pop(in_flight, None)
        issued = self._issued.pop(in_flight, None)
        if issued is not None:
            now = self._host.now()
            self._observer.ended("confirmed", now - issued.at)
            self._confirmed(now)

    # --- decisions --------------------------------------------------------------------------------

    def choose(self, demand: Demand) -> tuple[Sequence[InFlight], int]:
        """Return the requests that can be evicted for ``demand``, in order, and how many to evict.

        There are none while evictions are under way or have not had time to show.
        """
        settings, now = self._settings, self._host.now() + _EARLY_SECONDS
        wanted = demand.victims
        if settings is None or not wanted or self._issued or now < self._paused_until:
            return (), 0
        self._demand = demand
        lower = [each for each in self._kept if each.request.priority < demand.priority]
        min_run = settings.min_run_seconds
        ready = [each for each in lower if each.dispatched_at + min_run <= now]
        if not ready:
            if lower:
                self._wake_at(min(each.dispatched_at for each in lower) + min_run)
            return (), 0
        most = settings.max_per_decision
        count = most if wanted >= most else ceil(wanted)
        return _in_order(settings, ready), count

    def of(self, jobs: Sequence[QueuedRequest]) -> Sequence[InFlight]:
        """Return the records of ``jobs``.

        Raises:
            ValueError: One of them cannot be evicted, or no longer can.
        """
        wanted = set(jobs)
        found = [each for each in self._kept if each.revocable.queued in wanted]
        if len(found) < len(wanted):
            spared = wanted.difference(each.revocable.queued for each in found)
            names = ", ".join(sorted(each.name for each in spared))
            raise ValueError(
                f"{names} may not be evicted: the response has begun, the eviction filter spares"
                " the request, or flowControl.enableEviction is off"
            )
        return found

    def revoke(self, victims: Sequence[InFlight]) -> None:
        """Evict ``victims``; nothing more is evicted until they have ended."""
        settings, now, demand = self._settings, self._host.now(), self._demand
        if settings is None:
            return
        for victim in victims:
            del self._kept[victim]
            self._issued[victim] = _Issued(now, demand.credit)
            self._observer.issued(victim.request.priority)
        self._report()
        self._forget_deadline()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(settings.confirmation_seconds, self._timed_out)
        for victim in victims:  # each may end immediately
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
        now = self._host.now()
        issued, self._issued = self._issued, {}
        for each in issued.values():
            self._observer.ended("timed_out", now - each.at)
        log.warning(
            "evicted requests were not seen to end",
            request_ids=[each.request.request_id for each in issued],
        )
        self._confirmed(now)

    def _confirmed(self, now: float) -> None:
        self._report()
        if self._issued:
            return
        self._forget_deadline()
        if self._settings is not None:
            self._paused_until = now + self._settings.grace_seconds
            self._wake_at(self._paused_until)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _report(self) -> None:
        pending = sum(each.credit for each in self._issued.values())
        self._observer.reclaim(target=self._demand.target, pending=pending)

    def _wake_at(self, at: float) -> None:
        """Open a session at that time; a later call replaces an earlier one."""
        self._cancel_alarm()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(max(0.0, at - self._host.now()), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._host.wake()

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _accepts(settings: EvictionSettings, request: LLMRequest) -> bool:
    """Return the result of the filter; False if it fails."""
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
    """Sort ``victims`` by the configured order, or by the Go EPP's if that fails."""
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
