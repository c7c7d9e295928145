"""Whether the pool has room, and for which band: detector and usage limits, asked together."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from epp.flow_control.pressure.ceilings import Ceilings
from epp.flow_control.pressure.eviction import Demand
from epp.flow_control.pressure.saturation import FULL, PoolSaturation
from epp.flow_control.queues import QueuedRequest
from epp.flow_control.queues.bands import Bands, PolicyBand
from epp.flow_control.settings import FlowSettings
from epp.scheduling import Endpoint


class _Full(NamedTuple):
    """Why a band may not go; put into words when somebody asks, for most sessions end with it."""

    saturation: float
    priority: int
    ceiling: float

    def __str__(self) -> str:
        return (
            f"the pool's saturation is {self.saturation:.2f}, priority {self.priority} may go while"
            f" it is below {self.ceiling:.2f}"
        )


class Room:
    """What one pool can take now; what it said last can be looked at."""

    def __init__(self, pool: Callable[[], Sequence[Endpoint]], bands: Bands) -> None:
        self.pool = pool
        self._bands = bands
        self._settings: FlowSettings | None = None
        self._saturation: PoolSaturation | None = None
        self._ceilings: Ceilings | None = None
        self._blocked: str | _Full = ""
        self._blocked_at: tuple[PolicyBand, float] | None = None
        """The band that is blocked, and by which saturation."""
        self.is_held_back = False
        """Whether that is so though the pool is not full: the ceiling may be another one soon."""

    def use(self, settings: FlowSettings) -> None:
        """Go over to another detector and other usage limits."""
        self._settings = settings
        self._saturation = PoolSaturation(settings.detector)
        self._ceilings = Ceilings(settings.limits, self._bands)

    # --- decisions ----------------------------------------------------------------------------

    def has_some_for(self, band: PolicyBand, pool: Sequence[Endpoint]) -> bool:
        """Whether ``pool`` is less full than the band's ceiling."""
        assert self._saturation is not None and self._ceilings is not None  # noqa: S101, PT018 - it is on
        saturation = self._saturation.measure(pool)
        return saturation < self._ceilings.of(band.priority, saturation)

    def next_band(self) -> PolicyBand | None:
        """Return the band whose turn it is; None if none has, and why is kept."""
        assert self._saturation is not None and self._ceilings is not None  # noqa: S101, PT018 - it is on
        pool = self.pool()
        self._blocked_at = None
        self.is_held_back = False
        if not pool:
            self._blocked = "the pool has no endpoint"
            return None
        saturation = self._saturation.measure(pool)
        ceilings = self._ceilings.all(saturation)
        band = self._bands.next_band(saturation, ceilings)
        self._blocked = ""
        if band is None and (first := self._bands.first_ready()) is not None:
            ceiling = ceilings[self._bands.in_order.index(first)]
            self._blocked = _Full(saturation, first.priority, ceiling)
            self._blocked_at = first, saturation
            self.is_held_back = saturation < FULL
        return band

    def crowding(self, queued: QueuedRequest, endpoints: Sequence[Endpoint]) -> str:
        """Return why ``endpoints``, a part of the pool, cannot take a request; "" if they can."""
        assert self._settings is not None and self._ceilings is not None  # noqa: S101, PT018 - it is on
        saturation = PoolSaturation(self._settings.detector).measure(endpoints)
        ceilings = self._ceilings.by_priority
        is_owed = self._bands[queued.priority].credit >= 1
        ceiling = max(ceilings.values()) if is_owed else ceilings[queued.priority]
        if saturation < ceiling:
            return ""
        return (
            f"the saturation of the endpoints that it may go to ({len(endpoints)} of the pool's) is"
            f" {saturation:.2f}, it may go while it is below {ceiling:.2f}"
        )

    def demand(self) -> Demand | None:
        """Return what the blocked band lacks; None if none is."""
        if self._blocked_at is None:
            return None
        band, saturation = self._blocked_at
        in_flight = sum(endpoint.load.in_flight for endpoint in self.pool())
        return Demand(band.priority, saturation, self.ceilings[band.priority], in_flight)

    # --- what may be asked --------------------------------------------------------------------

    @property
    def saturation(self) -> Mapping[str, float]:
        """How full the pool was when that was looked at last, by stage."""
        return {} if self._saturation is None else self._saturation.by_stage

    @property
    def ceilings(self) -> Mapping[int, float]:
        """Up to which saturation each band could go by then, by priority."""
        return {} if self._ceilings is None else self._ceilings.by_priority

    @property
    def blocked(self) -> str:
        """Why nothing more could go; "" if nothing waits."""
        return str(self._blocked) if self._bands.waiting else ""

    def look(self) -> None:
        """Look how full the pool is now."""
        if self._saturation is not None:
            self._saturation.measure(self.pool())
