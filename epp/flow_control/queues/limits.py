"""Limits on waiting requests, per band and in total, and displacement when a limit is reached.

A new request displaces a waiting one of the flow that uses most of the limit per weight. If no flow
would use more than the new request's flow, the new request is refused. So a flood displaces its own
requests only.

* For a limit on requests, the newest request of that flow is displaced, because it has waited
  least; for a limit on bytes the largest, and the newest among equals.
* For a limit on all bands, the lowest band is displaced by those above it, whatever its flows use;
  a lower band never displaces a request of a higher one.
* A request displaces at most :data:`MAX_DISPLACED` others.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from epp.flow_control.flows import Flow, QueuedRequest
from epp.flow_control.queues.bands import Bands, PolicyBand
from epp.flow_control.queues.holdings import ByteHoldings, Holdings, RequestHoldings
from epp.flow_control.settings import FlowSettings

MAX_DISPLACED: Final = 64
"""Requests that one request may displace; answering them takes 5 ms of the event loop."""


class Limit(NamedTuple):
    """A limit that a new request would exceed."""

    kind: type[Holdings]
    """What is limited: requests or bytes."""
    band: PolicyBand | None
    """The limited band; None for all bands together."""
    excess: int
    """The amount that has to be displaced."""
    why: str


class Displacement(NamedTuple):
    """The outcome for a new request that may exceed a limit."""

    why: str
    """The limit, in words; "" if none is exceeded."""
    victims: Sequence[QueuedRequest] = ()
    """The requests that it displaces; none if it is refused."""


_NONE: Final = Displacement("")


def displacement(
    settings: FlowSettings, bands: Bands, band: PolicyBand, queued: QueuedRequest
) -> Displacement:
    """Return the limit that ``queued`` would exceed in ``band``, and the requests it displaces."""
    limits = _exceeded(settings, bands, band, queued.size_bytes)
    if not limits:
        return _NONE
    if settings.displaces:
        plan = _Plan(bands, band, queued)
        # Limits of the band first: requests displaced for them count for those of all bands, too.
        is_met = all(plan.meets(limit) for limit in reversed(limits))
        plan.close()
        if is_met:
            return Displacement(limits[0].why, tuple(plan.victims))
    return Displacement(limits[0].why)


def _exceeded(
    settings: FlowSettings, bands: Bands, band: PolicyBand, size_bytes: int
) -> Sequence[Limit]:
    """Return the limits that a new request of ``band`` would exceed."""
    exceeded = []
    if settings.max_requests and bands.waiting >= settings.max_requests:
        why = f"{bands.waiting} requests wait, which is the limit"
        exceeded.append(Limit(RequestHoldings, None, 1, why))
    if settings.max_bytes and bands.size_bytes + size_bytes > settings.max_bytes:
        why = (
            f"requests of {bands.size_bytes} bytes wait, with this one's {size_bytes} they"
            f" would exceed the limit of {settings.max_bytes}"
        )
        excess = _excess(bands.size_bytes, size_bytes, settings.max_bytes)
        exceeded.append(Limit(ByteHoldings, None, excess, why))
    if band.waiting >= band.max_requests:
        why = f"{band.waiting} requests of priority {band.priority} wait, which is the limit"
        exceeded.append(Limit(RequestHoldings, band, 1, why))
    if band.size_bytes + size_bytes > band.max_bytes:
        why = (
            f"requests of priority {band.priority} and {band.size_bytes} bytes wait, with this"
            f" one's {size_bytes} they would exceed the limit of {band.max_bytes}"
        )
        excess = _excess(band.size_bytes, size_bytes, band.max_bytes)
        exceeded.append(Limit(ByteHoldings, band, excess, why))
    return exceeded


def _excess(waiting: int, size_bytes: int, most: int) -> int:
    """Return how many bytes to displace: no more than arrive, even if the limit was lowered."""
    over = waiting + size_bytes - most
    return over if size_bytes > most else max(1, min(over, size_bytes))


class _Plan:
    """The requests that a new one would displace; none has left its queue yet."""

    def __init__(self, bands: Bands, band: PolicyBand, queued: QueuedRequest) -> None:
        self.victims: dict[QueuedRequest, None] = {}
        self._bands = bands
        self._band = band
        self._queued = queued
        self._used: dict[Holdings, None] = {}
        self._less: Mapping[type[Holdings], dict[Flow, int]] = {
            RequestHoldings: {},
            ByteHoldings: {},
        }
        """The amounts that flows would lose."""

    def meets(self, limit: Limit) -> bool:
        """Plan for ``limit``; return whether enough requests can be displaced."""
        freed = 0
        for planned in self.victims:
            if limit.band is None or planned.queue.band is limit.band:
                freed += limit.kind.of_request(planned)
        while freed < limit.excess:
            victim = self._next(limit) if len(self.victims) < MAX_DISPLACED else None
            if victim is None:
                return False
            self.victims[victim] = None
            for kind, less in self._less.items():
                flow = victim.queue
                less[flow] = less.get(flow, 0) + kind.of_request(victim)
            freed += limit.kind.of_request(victim)
        return True

    def close(self) -> None:
        """End the plan in all holdings that were used."""
        for holdings in self._used:
            holdings.settle()

    def _next(self, limit: Limit) -> QueuedRequest | None:
        kind, own = limit.kind, self._queued
        less = self._less[kind]
        if limit.band is None:
            for band in self._lower_bands():
                holdings = self._holdings(band, kind)
                flow = holdings.most(less)
                if flow is not None:
                    return holdings.first_to_go(flow, self.victims)
        holdings = self._holdings(self._band, kind)
        flow = holdings.most(less)
        if flow is None:
            return None
        its_own = holdings.per_weight(own.queue, kind.of_request(own))
        if holdings.per_weight(flow, -less.get(flow, 0)) <= its_own:
            return None
        return holdings.first_to_go(flow, self.victims)

    def _lower_bands(self) -> Iterator[PolicyBand]:
        """Yield the bands below the request's that have waiting requests, lowest first."""
        for band in reversed(self._bands.in_order):
            if band is self._band:
                return
            if band.waiting:
                yield band

    def _holdings(self, band: PolicyBand, kind: type[Holdings]) -> Holdings:
        holdings = band.holdings(kind)
        self._used[holdings] = None
        return holdings
