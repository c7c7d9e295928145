"""How much may wait, in all bands together and in each, and who gives way when a limit is reached.

The flow that holds most of what is limited, for its weight, loses a waiting request, so that one of
a flow that holds less can enter. If no flow holds more than the newcomer's would then, the newcomer
is refused. So a flood displaces only its own requests and takes no place from others.

* Under a limit on requests the newest of that flow gives way: it has waited least. Under a limit on
  bytes the largest does, and the newest among equals.
* Under a limit of all bands the lowest band gives way to one above it, whatever its flows hold; a
  higher band never gives way to a lower one.
* At most :data:`MOST_DISPLACED` requests give way to one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from epp.flow_control.queues import Flow, QueuedRequest
from epp.flow_control.queues.bands import Bands, PolicyBand
from epp.flow_control.queues.holdings import ByteHoldings, Holdings, RequestHoldings
from epp.flow_control.settings import FlowSettings

MOST_DISPLACED: Final = 64
"""Requests that give way to one: to answer them takes 5 ms of the event loop."""


class Limit(NamedTuple):
    """A limit that one more request would break."""

    kind: type[Holdings]
    """What is limited: requests or bytes."""
    band: PolicyBand | None
    """The band that is limited; None for all together."""
    excess: int
    """How much has to go."""
    why: str


class Displacement(NamedTuple):
    """What happens to a request that would break a limit."""

    why: str
    """The limit, in words; "" if it breaks none."""
    victims: Sequence[QueuedRequest] = ()
    """The requests that give way to it; none if it is refused."""


_NONE: Final = Displacement("")


def displacement(
    settings: FlowSettings, bands: Bands, band: PolicyBand, queued: QueuedRequest
) -> Displacement:
    """Return which limit ``queued`` would break in ``band``, and who gives way to it."""
    limits = _broken(settings, bands, band, queued.size_bytes)
    if not limits:
        return _NONE
    if settings.displaces:
        plan = _Plan(bands, band, queued)
        # Limits of the band first: requests that leave for them also count for those of all bands.
        is_met = all(plan.meets(limit) for limit in reversed(limits))
        plan.close()
        if is_met:
            return Displacement(limits[0].why, tuple(plan.victims))
    return Displacement(limits[0].why)


def _broken(
    settings: FlowSettings, bands: Bands, band: PolicyBand, size_bytes: int
) -> Sequence[Limit]:
    """Return the limits that one more request of ``band`` would break."""
    broken = []
    if settings.max_requests and bands.waiting >= settings.max_requests:
        why = f"{bands.waiting} requests wait, which is the most that may"
        broken.append(Limit(RequestHoldings, None, 1, why))
    if settings.max_bytes and bands.size_bytes + size_bytes > settings.max_bytes:
        why = (
            f"requests of {bands.size_bytes} bytes wait, with this one's {size_bytes} they"
            f" would be over the limit of {settings.max_bytes}"
        )
        excess = _excess(bands.size_bytes, size_bytes, settings.max_bytes)
        broken.append(Limit(ByteHoldings, None, excess, why))
    if band.waiting >= band.max_requests:
        why = (
            f"{band.waiting} requests of priority {band.priority} wait, which is the most that may"
        )
        broken.append(Limit(RequestHoldings, band, 1, why))
    if band.size_bytes + size_bytes > band.max_bytes:
        why = (
            f"requests of priority {band.priority} and {band.size_bytes} bytes wait, with this"
            f" one's {size_bytes} they would be over the limit of {band.max_bytes}"
        )
        excess = _excess(band.size_bytes, size_bytes, band.max_bytes)
        broken.append(Limit(ByteHoldings, band, excess, why))
    return broken


def _excess(waiting: int, size_bytes: int, most: int) -> int:
    """Return how many bytes must go: no more than arrive, even if the limit was lowered."""
    over = waiting + size_bytes - most
    return over if size_bytes > most else max(1, min(over, size_bytes))


class _Plan:
    """The requests that would give way to one; none has left yet."""

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
        """What flows would lose."""

    def meets(self, limit: Limit) -> bool:
        """Plan for ``limit``; return whether enough requests can give way."""
        freed = 0
        for planned in self.victims:
            if limit.band is None or planned.queue.band is limit.band:
                freed += limit.kind.of_request(planned)
        while freed < limit.excess:
            victim = self._next(limit) if len(self.victims) < MOST_DISPLACED else None
            if victim is None:
                return False
            self.victims[victim] = None
            for kind, less in self._less.items():
                flow = victim.queue
                less[flow] = less.get(flow, 0) + kind.of_request(victim)
            freed += limit.kind.of_request(victim)
        return True

    def close(self) -> None:
        """End the plan of every holding that was used."""
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
        """Yield the bands below that of the request in which something waits, lowest first."""
        for band in reversed(self._bands.in_order):
            if band is self._band:
                return
            if band.waiting:
                yield band

    def _holdings(self, band: PolicyBand, kind: type[Holdings]) -> Holdings:
        holdings = band.holdings(kind)
        self._used[holdings] = None
        return holdings
