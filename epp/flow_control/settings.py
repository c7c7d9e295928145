"""What flow control is told: limits, times and policies."""

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
    """How long a request waits while the pool has endpoints; None for ever."""
    floor_share: float = DEFAULT_FLOOR_SHARE
    """The part of all dispatches that the band has while bands above it have work; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSettings:
    """How requests in flight are evicted for others; the defaults are the reference's constants."""

    filter: Guard[EvictionFilter]
    order: Guard[EvictionOrder]
    min_run_seconds: float = 0.0
    """How long a request is left alone after it was dispatched."""
    max_per_decision: int = 2
    confirmation_seconds: float = 10.0
    """How long the end of a victim's stream is waited for."""
    grace_seconds: float = 0.5
    """How long nobody is evicted after that: what is free now must show first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """All of it, for one configuration."""

    detector: Guard[SaturationDetector]
    limits: Guard[UsageLimitPolicy]
    default_band: BandSettings
    """Of bands that are made when the first request comes."""
    negative_band: BandSettings
    """The same, of priorities below 0."""
    bands: Mapping[int, BandSettings] = field(default_factory=dict)
    """By priority; there from the start."""
    max_requests: int | None = None
    """Over all bands; None for no limit."""
    max_bytes: int | None = None
    """The same."""
    no_endpoint_ttl_seconds: float | None = DEFAULT_TTL_SECONDS
    """How long a request waits while the pool has none; None for ever."""
    holds_filtered: bool = True
    """Whether a request for which the filters leave no endpoint waits."""
    displaces: bool = True
    """Whether a waiting request gives way to a newcomer when a limit is reached."""
    plugins: tuple[SessionPlugin, ...] = ()
    """Of sessions, in the order in which these are opened to them."""
    actions: tuple[str, ...] = ("allocate",)
    """Of sessions, in the order in which they run."""
    eviction: EvictionSettings | None = None
    """None if nobody is ever evicted."""

    def of(self, priority: int) -> BandSettings:
        """Return the settings of the band of ``priority``."""
        known = self.bands.get(priority)
        if known is not None:
            return known
        return self.negative_band if priority < 0 else self.default_band
