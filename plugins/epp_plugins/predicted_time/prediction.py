"""What a request would take at an endpoint."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Prediction:
    """What sending one request to one endpoint would take, in seconds."""

    wait: float
    """Until the endpoint begins with it; inf while the endpoint is excluded."""
    service: float
    """From then to its first token."""
    delay_to_others: float
    """What it delays others by."""
    uncached_tokens: float
    """Its tokens that the endpoint would have to compute."""
    slowness: float
    """How much slower than the fleet the endpoint is."""

    @property
    def first_token(self) -> float:
        """Until the first token."""
        return self.wait + self.service

    @property
    def cost(self) -> float:
        """What endpoints are compared by; the least is the best."""
        return self.wait + self.service + self.delay_to_others

    def sentence(self, endpoint: str) -> str:
        """Return the prediction for readers."""
        if self.wait == inf:
            return f"{endpoint}: excluded for a moment, because it failed before a first token"
        tokens = f"{self.uncached_tokens:,.0f}".replace(",", " ")
        return (
            f"{endpoint}: {_seconds(self.cost)} expected: {_seconds(self.wait, unit='')} wait,"
            f" {_seconds(self.service, unit='')} prefill of {tokens} uncached tokens at"
            f" {1.0 / self.slowness:.2g}x speed, {_seconds(self.delay_to_others, unit='')} delay to"
            " others"
        )


def _seconds(value: float, *, unit: str = " s") -> str:
    return f"{value:.1f}{unit}" if value >= 1.0 else f"{value:.2f}{unit}"
