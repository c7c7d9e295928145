"""Limit the bytes of the metrics page for series whose labels come from clients.

There is one budget for all families. Every table of label sets (:mod:`.label_sets`) claims space
before it creates a child; a child costs the length of its lines on the page. Unknown names get a
small share, proven ones and fairness ids a larger one, and the rest is reserved for the operator's
names, so that junk is folded into ``other`` first. "Details" are histograms (19 to 190 lines per
label set) and series per endpoint. Part of each share is closed to details, so that request
counters keep their names longer.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

import structlog

from epp.observability.known_names import Standing

_log = structlog.get_logger(__name__)

DEFAULT_PAGE_BYTES: Final = 8_000_000
"""Values may become up to a tenth longer than estimated: the page then has 9 MB."""
SWEEP_SECONDS: Final = 10.0
"""Minimum time between two sweeps for idle label sets."""
STEPS_AT_ONCE: Final = 32
"""Label sets to review (0.4 ms) or remove (2 ms) per request: all 7,000 of a full page would block
the event loop for 0.1 s."""
IDLE_SECONDS: Final = 600.0
"""A label set may be removed after this time without a request; scrapes have seen its value."""
WARN_SECONDS: Final = 3600.0
"""Minimum time between two warnings about folded names."""

# Shares of the budget that label sets up to a standing may take together, and the smaller shares
# beyond which there is no room for details.
_SHARES: Final = {Standing.UNKNOWN: 3 / 16, Standing.PROVEN: 1 / 2, Standing.KNOWN: 1.0}
_DETAILS: Final = {Standing.UNKNOWN: 1 / 8, Standing.PROVEN: 3 / 8, Standing.KNOWN: 3 / 4}
_FREED: Final = 1 / 4
"""Largest share of its limit that a sweep frees, so that batches are small."""


class SeriesClaim:
    """The space on the page that one label set uses.

    Attributes:
        standing: Trust in its names.
        size_bytes: Length of its lines.
        activity: ``LabelSet.activity`` at the last review.
        active_at: Time of the last review that found new activity.
    """

    __slots__ = ("active_at", "activity", "size_bytes", "standing")

    def __init__(self, standing: Standing, now: float) -> None:
        self.standing = standing
        self.size_bytes = 0
        self.activity = -1.0
        self.active_at = now


class Claimant(Protocol):
    """A table of label sets."""

    def review(self, now: float) -> Iterator[tuple[SeriesClaim, Callable[[], None]] | None]:
        """Update the claims, one per step; the table may change between steps.

        Yields:
            A claim that may be removed, with a function that removes it if that still holds; None
            for a claim to keep.
        """


class PageBudget:
    """The budget of one page.

    Args:
        page_bytes: Returns the current length of the page.
        max_bytes: Limit on its length.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        page_bytes: Callable[[], int],
        max_bytes: int = DEFAULT_PAGE_BYTES,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes = max_bytes
        self.folded = 0
        """Number of label sets that were refused series of their own."""
        self._page_bytes = page_bytes
        self._clock = clock
        self._full: set[tuple[Standing, bool]] = set()
        self._claimants: list[Claimant] = []
        self._claimed = dict.fromkeys(Standing, 0)
        self._swept_at: float | None = None
        self._sweeping: Iterator[None] | None = None
        """The rest of the current sweep."""
        self._warned_at: float | None = None

    def add(self, claimant: Claimant) -> None:
        """Include ``claimant`` in sweeps."""
        self._claimants.append(claimant)

    def open(self, standing: Standing) -> SeriesClaim:
        """Return a new claim of 0 bytes."""
        return SeriesClaim(standing, self._clock())

    def claimed_bytes(self, standing: Standing) -> int:
        """Return the bytes claimed by label sets of ``standing``."""
        return self._claimed[standing]

    def is_full(self, standing: Standing, *, is_detail: bool) -> bool:
        """Return whether :meth:`take` would fail; fast: called on each request."""
        if (standing, is_detail) in self._full:
            self._sweep(standing)
        if (standing, is_detail) in self._full:
            self.folded += 1
            return True
        return False

    def take(
        self, claim: SeriesClaim, size_bytes: int, *, is_detail: bool = False, always: bool = False
    ) -> bool:
        """Add ``size_bytes`` to ``claim`` if there is space; return whether there was.

        Args:
            claim: The claim to extend.
            size_bytes: Length of the lines.
            is_detail: Whether they are details.
            always: Add them even without space: ``other`` itself must exist.
        """
        standing = claim.standing
        if not always and not self._has_room(standing, size_bytes, is_detail):
            self._sweep(standing)
            if not self._has_room(standing, size_bytes, is_detail):
                self._full.add((standing, is_detail))
                self.folded += 1
                return False
        self._claimed[standing] += size_bytes
        claim.size_bytes += size_bytes
        return True

    def close(self, claim: SeriesClaim) -> None:
        """Release all bytes of ``claim``."""
        self._claimed[claim.standing] -= claim.size_bytes
        claim.size_bytes = 0
        self._full.clear()

    def move(self, claim: SeriesClaim, standing: Standing) -> None:
        """Move ``claim`` to another standing, as trust in its names has changed."""
        if standing is claim.standing:
            return
        self._claimed[claim.standing] -= claim.size_bytes
        self._claimed[standing] += claim.size_bytes
        claim.standing = standing
        self._full.clear()

    def _has_room(self, standing: Standing, size_bytes: int, is_detail: bool) -> bool:
        shares = _DETAILS if is_detail else _SHARES
        claimed = size_bytes
        for each in Standing:
            claimed += self._claimed[each]
            if each is Standing.KNOWN:
                claimed = size_bytes + self._page_bytes()
            if each >= standing and claimed > shares[each] * self.max_bytes:
                return False
        return True

    def _sweep(self, standing: Standing) -> None:
        """Remove idle label sets, a few per call."""
        if self._sweeping is None:
            now = self._clock()
            if self._swept_at is not None and now - self._swept_at < SWEEP_SECONDS:
                return
            self._swept_at = now
            self._full.clear()
            self._warn(now)
            self._sweeping = self._steps(standing, now)
        if len(list(islice(self._sweeping, STEPS_AT_ONCE))) < STEPS_AT_ONCE:
            self._sweeping = None

    def _steps(self, standing: Standing, now: float) -> Iterator[None]:
        """Review all claims, then remove idle ones, unknown names first."""
        idle = []
        for claimant in self._claimants:
            for found in claimant.review(now):
                if found is not None:
                    idle.append(found)
                yield
        idle.sort(key=lambda each: (each[0].standing, each[0].active_at))
        left = _FREED * _SHARES[standing] * self.max_bytes
        for claim, remove in idle:
            if left <= 0 or claim.standing > standing:
                break
            left -= claim.size_bytes
            remove()
            yield

    def _warn(self, now: float) -> None:
        if self._warned_at is not None and now - self._warned_at < WARN_SECONDS:
            return
        self._warned_at = now
        _log.warning(
            "metrics page is full, further names count as other",
            max_bytes=self.max_bytes,
            unknown_bytes=self._claimed[Standing.UNKNOWN],
            proven_bytes=self._claimed[Standing.PROVEN],
            known_bytes=self._claimed[Standing.KNOWN],
            remedy="raise --max-metrics-page-bytes, or have the gateway set the fairness id",
        )
