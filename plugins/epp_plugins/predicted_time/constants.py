"""The constants of the predicted-time model, with defaults that need no tuning.

They come from a study on a discrete-event simulator with two kinds of engine;
docs/predicted-time.md describes their effect on predictions.
"""

from typing import Annotated, Final

import msgspec

UNIT_TOKENS: Final = 1000.0
"""Tokens per unit, u0."""

Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Decay = Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
AtLeastOne = Annotated[float, msgspec.Meta(ge=1.0, le=1e6)]


_ORDERED: Final = (
    ("modeEnter", "modeLeave"),
    ("trustBelow", "distrustAbove"),
    ("breakerSeconds", "breakerMostSeconds"),
)
"""Pairs of constants of which the first must not be above the second."""


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Constants of one :class:`~epp_plugins.predicted_time.FleetModel`."""

    prior_base_seconds: NotNegative = 0.02
    """Service time of an empty prompt before anything is learned."""
    prior_unit_seconds: NotNegative = 0.06
    """Service time of 1000 tokens before anything is learned."""
    prior_weight: Positive = 0.3
    """Weight of the prior, beside samples that weigh 1 / (``weightFloorSeconds`` + prediction);
    small, because a prior may be wrong by a factor of ten."""
    forgetting: Decay = 0.998
    """Factor on the weight of older samples, per sample."""
    weight_floor_seconds: Positive = 0.1
    """A sample weighs 1 / (this + its prediction)."""
    clip_factor: AtLeastOne = 4.0
    """A sample counts as at most this many times its prediction, plus ``clipSeconds``."""
    clip_seconds: NotNegative = 0.2
    """See ``clipFactor``."""
    slowness_decay: Decay = 0.97
    """Factor on the weight of older samples in an endpoint's slowness, per sample."""
    slowness_half_life_seconds: Positive = 30.0
    """Time in which evidence about an endpoint's slowness loses half its weight."""
    slowness_pseudo_services: Positive = 3.0
    """Services of the fleet's speed that an endpoint's slowness starts with."""
    slowness_threshold: NotNegative = 0.1
    """Slowness whose natural logarithm is within this much of 0 counts as 1."""
    most_slowness: AtLeastOne = 16.0
    """Maximum slowness; the minimum is 0.25."""
    decode_share: Decay = 0.1
    """Share of the latest sample in the mean time a decode holds its slot."""
    kv_full: Fraction = 0.9
    """KV-cache usage above which requests are expected to wait for blocks, if some wait already."""
    kv_range: Positive = 0.05
    """KV-cache usage beyond ``kvFull`` at which all requests are expected to wait."""
    shared_wait_weight: NotNegative = 2.0
    """Weight of the wait shared by all endpoints in the delay that a request causes to others."""
    shared_wait_growth: NotNegative = 1.0
    """Growth of ``sharedWaitWeight`` with the shared wait, per mean service: the longer the queues,
    the more requests arrive before they are empty."""
    own_wait_weight: NotNegative = 0.5
    """Weight of the endpoint's own wait in the delay that a request causes to others."""
    most_delayed: NotNegative = 64.0
    """Maximum requests that count as delayed, in each of the two terms."""
    eviction_weight: NotNegative = 0.3
    """Weight of the cached blocks that a request evicts at its endpoint."""
    replication_credit: Fraction = 0.0
    """Share of a hot prefix that counts as cached at servers without it; 0 for no replication in
    advance."""
    hot_load: Positive = 0.7
    """A prefix is hot when requests with it would take more than this share of the time of every
    server that has cached it."""
    adapter_load_seconds: NotNegative = 0.15
    """Time that a server takes to load a LoRA adapter."""
    mode_share: Decay = 0.05
    """Share of the latest sample in the error of each mode."""
    overdue_share: Decay = 0.1
    """Share of the latest sample if it is a request whose first token is overdue."""
    mode_difference: NotNegative = 0.26
    """The modes are compared on requests for which their predictions differ by at least this, as a
    natural logarithm; the default is about 30 %."""
    mode_enter: Positive = 0.6
    """The mode changes to slots when the error in slots mode is below this fraction of the error in
    serial mode; at most ``modeLeave``."""
    mode_leave: Positive = 0.85
    """The mode changes to serial when the error in slots mode is above this fraction of the error
    in serial mode."""
    room_seconds: NotNegative = 0.15
    """An endpoint in serial mode has room while its wait is at most this."""
    probe_always: Annotated[int, msgspec.Meta(ge=0)] = 20
    """Number of first scrapes of a full endpoint without a queue that allow one request more."""
    probe_share: Fraction = 0.02
    """Share of later scrapes of a full endpoint without a queue that allow one request more."""
    breaker_seconds: Positive = 0.5
    """Time for which one failure before the first token excludes an endpoint; it doubles with each
    further failure. At most ``breakerMostSeconds``."""
    breaker_most_seconds: Positive = 30.0
    """Maximum time of an exclusion."""
    trust_samples: Annotated[int, msgspec.Meta(ge=0)] = 16
    """First tokens to learn from before predictions are used."""
    trust_share: Decay = 0.03
    """Share of the latest sample in the errors that decide whether predictions are used."""
    distrust_above: Positive = 2.0
    """Predictions cease to be used when their error exceeds this multiple of a constant's error."""
    trust_below: Positive = 0.95
    """Predictions are used again when their error is below this multiple of a constant's error; at
    most ``distrustAbove``."""

    def __post_init__(self) -> None:
        """Refuse limits in the wrong order: the model would change to and fro, or ignore one."""
        values = msgspec.to_builtins(self)
        for lower, upper in _ORDERED:
            if values[lower] > values[upper]:
                raise ValueError(
                    f"{lower} is {values[lower]:g}, but it must be at most {upper}, which is"
                    f" {values[upper]:g}: lower the one or raise the other"
                )


DEFAULTS = Constants()
