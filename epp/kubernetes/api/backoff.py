"""How long to wait before a failed call is repeated."""

import random
from typing import Final

from epp.kubernetes.api.errors import ApiError, KubernetesApiError, UnreachableError

_FIRST_SECONDS: Final = 1.6
_MOST_SECONDS: Final = 30.0
_MOST_DOUBLINGS: Final = 5
"""Doublings from the first to the longest wait, rounded up."""


class Backoff:
    """Random waits from 0.8 to 1.6 s, doubled with each failure up to 15 to 30 s.

    Failures to connect do not count: they put no load on the server, and its return should be
    noticed soon. It is noticed within 1.6 s, however long the server was away.

    Args:
        rng: Source of the jitter.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0

    def reset(self) -> None:
        """Start over after a success."""
        self._failures = 0

    def next_seconds(self, error: KubernetesApiError | None) -> float:
        """Return the next wait.

        Args:
            error: The failure, None for a success that was too short; a ``Retry-After`` is obeyed
                up to the longest wait.
        """
        if isinstance(error, UnreachableError):
            doublings = 0
        else:
            doublings = self._failures
            self._failures = min(doublings + 1, _MOST_DOUBLINGS)
        longest = min(_MOST_SECONDS, _FIRST_SECONDS * 2**doublings)
        wait = self._rng.uniform(longest / 2, longest)
        wanted = error.retry_after_seconds if isinstance(error, ApiError) else None
        return wait if wanted is None else max(wait, min(wanted, _MOST_SECONDS))
