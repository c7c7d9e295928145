"""Hedging: when a gateway should send a streamed request to a second endpoint as well.

A gateway with hedging sends the request to the next endpoint of its list if the response has not
begun after a time that the endpoint picker names, and uses the response that begins first. That
time is learned from recent requests with prompts of similar length: the responses to most of them
began sooner. A budget limits the second tries, because they are extra load when the pool is slow
already.
"""

from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Final

_LEAST_QUANTILE: Final = 0.95
"""At least this share of requests is never hedged."""
_SAMPLES: Final = 256
"""Recent requests that are remembered for each length of prompt."""
_LEAST_SAMPLES: Final = 64
"""No request is hedged until this many of its length are known."""
_RENEWAL: Final = 16
"""The delay is computed again after this many more requests."""
_LEAST_SECONDS: Final = 0.01
_MAX_SAVED: Final = 10.0
"""Maximum unspent budget, in second tries."""


class _Times:
    """Times to response headers of requests with prompts of similar length."""

    __slots__ = ("_recent", "_unseen", "delay_seconds")

    def __init__(self) -> None:
        self.delay_seconds: float | None = None
        self._recent: deque[float] = deque(maxlen=_SAMPLES)
        self._unseen = 0

    def add(self, seconds: float, quantile: float) -> None:
        self._recent.append(seconds)
        self._unseen += 1
        if len(self._recent) >= _LEAST_SAMPLES and self._unseen >= _RENEWAL:
            self._unseen = 0
            times = sorted(self._recent)
            slow = times[min(int(len(times) * quantile), len(times) - 1)]
            self.delay_seconds = max(slow, _LEAST_SECONDS)


class Hedging:
    """Learns delays, and keeps the budget.

    Args:
        budget: Second tries as a share of all streamed requests, 0.0 to 1.0.
        hedged: Called after each hedge with whether a further endpoint responded first.
    """

    def __init__(self, budget: float, hedged: Callable[[bool], None]) -> None:
        self._budget = budget
        self._quantile = max(_LEAST_QUANTILE, 1.0 - budget)
        self._times: dict[int, _Times] = {}
        self._saved = 1.0
        self._hedged = hedged

    def begin(self, body_bytes: int, now: float, others: int) -> "Hedge":
        """Return the hedge of a request that is sent now.

        Args:
            body_bytes: Length of its body.
            now: Seconds of a monotonic clock.
            others: How many further endpoints the gateway can use for it.
        """
        times = self._times.setdefault(body_bytes.bit_length(), _Times())
        self._saved = min(self._saved + self._budget, _MAX_SAVED)
        delay = times.delay_seconds
        if delay is None or not others or self._saved < 1.0:
            return Hedge(self, times, now, None, 0)
        self._saved -= 1.0
        return Hedge(self, times, now, delay, others)

    def learn(self, times: _Times, seconds: float) -> None:
        """Remember how long a request took until its response began."""
        times.add(seconds, self._quantile)

    def settle(self, tries: int, *, has_won: bool) -> None:
        """Give back the budget that a hedge reserved, less its second tries.

        Args:
            tries: How often the gateway sent the request to a further endpoint.
            has_won: Whether one of these responded first.
        """
        self._saved += 1.0 - tries
        if tries:
            self._hedged(has_won)


class Hedge:
    """The hedge of one request; ``delay_seconds`` is None if it may have none.

    :meth:`end` is called when its response begins, or at its end if none began.
    """

    __slots__ = ("_hedging", "_others", "_sent_at", "_times", "delay_seconds", "is_won")

    def __init__(
        self,
        hedging: Hedging,
        times: _Times,
        sent_at: float,
        delay_seconds: float | None,
        others: int,
    ) -> None:
        self._hedging = hedging
        self._times = times
        self._sent_at = sent_at
        self._others = others
        self.delay_seconds = delay_seconds
        self.is_won = False
        """Whether a further endpoint has responded first."""

    def tries(self, now: float) -> int:
        """Return how many further endpoints the gateway has sent the request to by now."""
        if self.delay_seconds is None:
            return 0
        return min(self._others, max(0, ceil((now - self._sent_at) / self.delay_seconds) - 1))

    def end(self, now: float, *, has_succeeded: bool) -> None:
        """Learn from the request, and settle its budget."""
        if has_succeeded:
            self._hedging.learn(self._times, now - self._sent_at)
        if self.delay_seconds is not None:
            self._hedging.settle(self.tries(now), has_won=self.is_won)
