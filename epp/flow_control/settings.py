"""The settings of flow control: limits, timeouts and policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epp.flow_control.plugins import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    SessionListener,
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
    """Maximum waiting time while the pool has endpoints; None for no limit."""
    floor_share: float = DEFAULT_FLOOR_SHARE
    """Fraction of dispatches guaranteed while higher bands have requests; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSettings:
    """Eviction of requests in flight; the defaults are the constants of the Go EPP."""

    filter: Guard[EvictionFilter]
    order: Guard[EvictionOrder]
    min_run_seconds: float = 0.0
    """Time after its dispatch in which a request is not evicted."""
    max_per_decision: int = 2
    confirmation_seconds: float = 10.0
    """Maximum time to wait for the end of an evicted request."""
    grace_seconds: float = 0.5
    """Pause after an eviction, in which the freed capacity shows in the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """Settings of flow control that a configuration describes; a reload makes new ones."""

    detector: Guard[SaturationDetector]
    limits: Guard[UsageLimitPolicy]
    default_band: BandSettings
    """Settings of bands that are not in ``bands``, for priorities from 0."""
    negative_band: BandSettings
    """Settings of bands that are not in ``bands``, for priorities below 0."""
    bands: Mapping[int, BandSettings] = field(default_factory=dict)
    """Configured bands, by priority; they exist from the start, others from their first request."""
    max_requests: int | None = None
    """Maximum number of waiting requests in all bands together; None for no limit."""
    max_bytes: int | None = None
    """Maximum length of all waiting requests together, in bytes; None for no limit."""
    no_endpoint_ttl_seconds: float | None = DEFAULT_TTL_SECONDS
    """Maximum waiting time while the pool has no endpoints; None for no limit."""
    holds_filtered: bool = True
    """Queue a request for which the filters leave no endpoint, instead of rejecting it."""
    displaces: bool = True
    """Let a new request displace a waiting one when a limit is reached."""
    plugins: tuple[SessionPlugin, ...] = ()
    """Session plugins, in the order in which a session opens them."""
    actions: tuple[str, ...] = ("allocate",)
    """Actions of a session, in the order of their execution."""
    slow_call_seconds: float = 0.05
    """Calls of session plugins that take longer are counted."""
    listeners: Sequence[Guard[SessionListener]] = ()
    """Plugins that are notified of sessions."""
    eviction: EvictionSettings | None = None
    """None if requests in flight are not evicted."""

    def of(self, priority: int) -> BandSettings:
        """Return the settings of the band of ``priority``."""
        known = self.bands.get(priority)
        if known is not None:
            return known
        return self.negative_band if priority < 0 else self.default_band
