"""Counts which scorer decides, for a sample of the decisions.

Finding out takes 3 us with 10 endpoints and 9 with 1000, so one decision in 32 is examined, or
fewer with many endpoints: 0.2 us a decision on average. The gaps between them are random, so that
the sample cannot fall into step with a pattern of requests.
"""

import random
from typing import Final

from epp.observability.known_names import OTHER
from epp.observability.metric_families import Maker
from epp.scheduling import SchedulingResult, decided_by

SAMPLED: Final = 32
"""One decision out of this many is examined, on average, if there are few endpoints."""
_ENDPOINTS: Final = 8
"""The average gap grows by one decision per this many endpoints."""
MAX_SETS: Final = 200
"""Maximum label sets: reloads may add new names of profiles and scorers; further ones are
``other``."""


class DecisionMetrics:
    """Counts sampled decisions by what decided them."""

    def __init__(self, make: Maker, rng: random.Random | None = None) -> None:
        self._random = rng or random.Random()  # noqa: S311 - no secret
        self._left = 1
        self._known: set[tuple[str, ...]] = set()
        self._sampled = make.counter(
            "sampled_decisions_total",
            "A sample of the decisions, by what put the winner ahead of the runner-up: a scorer,"
            " flow control's preference, a tie, the picker, or only-candidate.",
            ("profile", "decided_by", "scorer"),
        )

    def decided(self, result: SchedulingResult) -> None:
        """Count a decision if it is in the sample; its scores must not have been dropped."""
        self._left -= 1
        if self._left <= 0:
            self._look(result)

    def _look(self, result: SchedulingResult) -> None:
        endpoints = 0
        for name, profile in result.profiles.items():
            endpoints += len(profile.scored)
            if profile.endpoints:
                kind, scorer = decided_by(profile)
                labels = (name, kind.value, scorer)
                if labels not in self._known and len(self._known) >= MAX_SETS:
                    labels = (OTHER, OTHER, OTHER)
                self._known.add(labels)
                self._sampled.labels(*labels).inc()
        self._left = self._random.randrange(1, 2 * (SAMPLED + endpoints // _ENDPOINTS))
