"""Combines detector and usage limits: whether the pool has capacity, and for which band."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from epp.flow_control.flows import QueuedRequest
from epp.flow_control.interfaces import FlowHost
from epp.flow_control.pressure.ceilings import Ceilings
from epp.flow_control.pressure.eviction import Demand
from epp.flow_control.pressure.saturation import FULL, PoolSaturation
from epp.flow_control.queues.bands import Bands, PolicyBand
from epp.flow_control.settings import FlowSettings
from epp.scheduling import Endpoint


class _Blocked(NamedTuple):
    """Why a band is blocked; formatted on demand only, because most sessions end with it."""

    saturation: float
    priority: int
    ceiling: float

    def __str__(self) -> str:
        return (
            f"the pool's saturation is {self.saturation:.2f}, priority {self.priority} is"
            f" dispatched below {self.ceiling:.2f}"
        )


class Capacity:
    """The capacity of the pool, as of the last measurement."""

    def __init__(self, settings: FlowSettings, host: FlowHost, bands: Bands) -> None:
        self._host = host
        self._bands = bands
        self._detector = settings.detector
        self._saturation = PoolSaturation(settings.detector)
        self._ceilings = Ceilings(settings.limits, bands)
        self._blocked: str | _Blocked = ""
        self._blocked_band: tuple[PolicyBand, float] | None = None
        """The blocked band, and the saturation that blocks it."""
        self.is_held_back = False
        """Whether a ceiling blocks the band below full saturation; the ceiling may change soon."""

    # --- decisions --------------------------------------------------------------------------------

    def is_left_for(self, band: PolicyBand, pool: Sequence[Endpoint]) -> bool:
        """Return whether the saturation of ``pool`` is below the band's ceiling."""
        saturation = self._saturation.measure(pool)
        return saturation < self._ceilings.of(band.priority, saturation)

    def next_band(self) -> PolicyBand | None:
        """Return the band that may dispatch next; None if none may, and the reason is kept."""
        pool = self._host.pool()
        self._blocked_band = None
        self.is_held_back = False
        if not pool:
            self._blocked = self._host.why_empty()
            return None
        saturation = self._saturation.measure(pool)
        ceilings = self._ceilings.all(saturation)
        band = self._bands.next_band(saturation, ceilings)
        self._blocked = ""
        if band is None and (first := self._bands.first_ready()) is not None:
            ceiling = ceilings[self._bands.in_order.index(first)]
            self._blocked = _Blocked(saturation, first.priority, ceiling)
            self._blocked_band = first, saturation
            self.is_held_back = saturation < FULL
        return band

    def shortage(self, queued: QueuedRequest, endpoints: Sequence[Endpoint]) -> str:
        """Return why ``endpoints``, a part of the pool, are too full for a request; "" if not."""
        saturation = PoolSaturation(self._detector).measure(endpoints)
        ceilings = self._ceilings.by_priority
        is_owed = self._bands[queued.priority].credit >= 1
        ceiling = max(ceilings.values()) if is_owed else ceilings[queued.priority]
        if saturation < ceiling:
            return ""
        return (
            f"the saturation of the endpoints that it is limited to ({len(endpoints)} of the pool)"
            f" is {saturation:.2f}, it is dispatched below {ceiling:.2f}"
        )

    def demand(self) -> Demand | None:
        """Return the demand of the blocked band; None if no band is blocked."""
        if self._blocked_band is None:
            return None
        band, saturation = self._blocked_band
        in_flight = sum(endpoint.load.in_flight for endpoint in self._host.pool())
        return Demand(band.priority, saturation, self.ceilings[band.priority], in_flight)

    # --- the last measurement ---------------------------------------------------------------------

    @property
    def pool(self) -> Sequence[Endpoint]:
        """The current snapshot of the endpoints."""
        return self._host.pool()

    @property
    def saturation(self) -> Mapping[str, float]:
        """The saturation by stage, as last measured."""
        return self._saturation.by_stage

    @property
    def ceilings(self) -> Mapping[int, float]:
        """The ceilings by priority, as last computed."""
        return self._ceilings.by_priority

    @property
    def blocked(self) -> str:
        """Why no band may dispatch; "" if no request waits."""
        return str(self._blocked) if self._bands.waiting else ""

    def measure(self) -> None:
        """Measure the saturation now."""
        self._saturation.measure(self._host.pool())
