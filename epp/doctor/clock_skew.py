"""Measures the clock of another machine against this one's, by the Date header of a response."""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Self


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """The difference of two clocks."""

    seconds: float
    """Estimated difference; positive if the other clock is ahead."""
    within: float
    """Maximum error of ``seconds``: a Date has whole seconds, and a response takes time."""

    @classmethod
    def of(cls, date: str, asked_at: float, responded_at: float) -> Self | None:
        """Return the difference; None without a valid header.

        Args:
            date: The header.
            asked_at: When the request was sent, in Unix seconds of this machine.
            responded_at: When the response arrived, likewise.
        """
        try:
            other = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return None
        own = (asked_at + responded_at) / 2
        return cls(other + 0.5 - own, 0.5 + (responded_at - asked_at) / 2)

    @property
    def at_least(self) -> float:
        """The minimum difference in seconds, whatever its direction."""
        return max(0.0, abs(self.seconds) - self.within)

    def __str__(self) -> str:
        """Return the difference as findings show it, such as ``3.2 s ahead``."""
        return f"{abs(self.seconds):.1f} s {'ahead' if self.seconds > 0 else 'behind'}"
