"""Decides which traces are recorded, with OpenTelemetry's samplers, without an object per span.

A decision is made for every request, before anything is recorded for it.
"""

from dataclasses import dataclass
from typing import Final

from epp.tracing.trace_context import TraceParent

_PARENTBASED = "parentbased_"
_RATIO = "traceidratio"
_LOWER_HALF: Final = (1 << 64) - 1
_RATIOS: Final = 1 << 63
"""63 bits of the lower half of a trace id decide, as in the Go SDK."""

DEFAULT_RATIO: Final = 0.1
"""As in the Go EPP; OpenTelemetry's own default is 1.0."""

SAMPLERS: Final = (
    "always_on",
    "always_off",
    _RATIO,
    f"{_PARENTBASED}always_on",
    f"{_PARENTBASED}always_off",
    f"{_PARENTBASED}{_RATIO}",
)
"""Values of ``OTEL_TRACES_SAMPLER``."""
DEFAULT_SAMPLER: Final = SAMPLERS[-1]

_FIXED_RATIOS: Final = {"always_on": 1.0, "always_off": 0.0}


@dataclass(frozen=True, slots=True)
class Sampler:
    """Decides by the caller's decision or by the trace id."""

    ratio: float = DEFAULT_RATIO
    """Fraction of the traces to record, where the caller has not decided."""
    follows_parent: bool = True
    """Whether the caller's decision counts."""

    def samples(self, parent: TraceParent) -> bool:
        """Return whether a request below the caller's span is recorded."""
        return parent.is_sampled if self.follows_parent else self.begins(int(parent.trace_id, 16))

    def begins(self, trace_number: int) -> bool:
        """Return whether a new trace is recorded.

        Args:
            trace_number: Its id.
        """
        return (trace_number & _LOWER_HALF) >> 1 < self.ratio * _RATIOS


def sampler_of(name: str, argument: str) -> Sampler:
    """Return the sampler of ``OTEL_TRACES_SAMPLER`` and ``OTEL_TRACES_SAMPLER_ARG``.

    Args:
        name: Name of the sampler; "" for the default.
        argument: Ratio of the ``traceidratio`` samplers; "" for the default.

    Raises:
        ValueError: One of them is invalid.
    """
    name = name or DEFAULT_SAMPLER
    if name not in SAMPLERS:
        raise ValueError(
            f"OTEL_TRACES_SAMPLER is {name!r}; it must be one of {', '.join(SAMPLERS)}"
        )
    kind = name.removeprefix(_PARENTBASED)
    ratio = _FIXED_RATIOS.get(kind)
    return Sampler(_ratio(argument) if ratio is None else ratio, name.startswith(_PARENTBASED))


def _ratio(text: str) -> float:
    if not text:
        return DEFAULT_RATIO
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG is {text!r}; it must be a number from 0 to 1")
    return ratio
