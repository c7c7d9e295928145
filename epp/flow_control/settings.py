"""The settings of flow control: limits, timeouts and policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from epp.flow_control.plugins import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.flow_control.sessions import SessionPlugin
from epp.scheduling import Guard

DEFAULT_TTL_SECONDS = 60.0
DEFAULT_BAND_REQUESTS = 5000
DEFAULT_BAND_BYTES = 1_000_000_000
DEFAULT_FLOOR_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class BandSettings:
    """Limits and policies of one band."""

    ordering: Guard[OrderingPolicy]
    fairness: Guard[FairnessPolicy]
    max_requests: int = DEFAULT_BAND_REQUESTS
    max_bytes: int = DEFAULT_BAND_BYTES
    ttl_seconds: float | None = DEFAULT_TTL_SECONDS
    """How long a request waits while the pool has endpoints; None for no limit."""
    floor_share: float = DEFAULT_FLOOR_SHARE
    """The part of all dispatches guaranteed while higher bands have work; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSettings:
    """The eviction of requests in flight; the defaults are the reference's constants."""

    filter: Guard[EvictionFilter]
    order: Guard[EvictionOrder]
    min_run_seconds: float = 0.0
    """How long a request cannot be evicted after its dispatch."""
    max_per_decision: int = 2
    confirmation_seconds: float = 10.0
    """How long to wait for the end of an evicted request."""
    grace_seconds: float = 0.5
    """Pause after an eviction, in which the freed capacity shows in the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """The settings of one configuration."""

    detector: Guard[SaturationDetector]
    limits: Guard[UsageLimitPolicy]
    default_band: BandSettings
    """For bands that are created when their first request arrives."""
    negative_band: BandSettings
    """The same for priorities below 0."""
    bands: Mapping[int, BandSettings] = field(default_factory=dict)
    """By priority; these bands exist from the start."""
    max_requests: int | None = None
    """Limit on waiting requests of all bands; None for no limit."""
    max_bytes: int | None = None
    """Limit on their bytes; None for no limit."""
    no_endpoint_ttl_seconds: float | None = DEFAULT_TTL_SECONDS
    """How long a request waits while the pool has no endpoints; None for no limit."""
    holds_filtered: bool = True
    """Whether a request waits if the filters leave no endpoint for it."""
    displaces: bool = True
    """Whether a new request displaces a waiting one when a limit is reached."""
    plugins: tuple[SessionPlugin, ...] = ()
    """The session plugins, in the order in which sessions are opened."""
    actions: tuple[str, ...] = ("allocate",)
    """The actions of sessions, in the order in which they are executed."""
    eviction: EvictionSettings | None = None
    """None if requests in flight are not evicted."""

    def of(self, priority: int) -> BandSettings:
        """Return the settings of the band of ``priority``."""
        known = self.bands.get(priority)
        if known is not None:
            return known
        return self.negative_band if priority < 0 else self.default_band
