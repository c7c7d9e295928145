"""Which endpoint each session is bound to: bounded, and forgetful.

A binding lives until nobody has used it for longer than the time to live. Bindings stand in the
order of their last use, so the ones to forget are always at the front: the oldest goes when the
store is full, and expired ones are swept off there, a few with each new use, so that no single
request pays for many of them. Nothing runs in the background.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

LIMIT: Final = 65_536
"""Bindings at most: 15 MiB with ids of 36 characters, 17 MiB with ones of 64, the longest."""
_SWEPT_AT_ONCE: Final = 64


class SessionBindings:
    """Endpoint names by session id.

    Args:
        ttl_seconds: How long an unused binding lives.
        sweep_seconds: How long after a sweep that found no more to do the next one begins.
        clock: Seconds, monotonic.
        limit: Bindings at most.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float,
        sweep_seconds: float,
        clock: Callable[[], float],
        limit: int = LIMIT,
    ) -> None:
        self._ttl_seconds = ttl_seconds
        self._sweep_seconds = sweep_seconds
        self._clock = clock
        self._limit = limit
        # Not a dict: taking its first item walks over all that were taken before.
        self._bindings: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._next_sweep = clock() + sweep_seconds

    def __len__(self) -> int:
        """Return how many are held, expired ones that are not swept yet among them."""
        return len(self._bindings)

    def endpoint_of(self, session: str) -> str:
        """Return the name of the endpoint that ``session`` is bound to; "" if to none."""
        binding = self._bindings.get(session)
        if binding is None or self._clock() - binding[1] > self._ttl_seconds:
            return ""
        return binding[0]

    def bind(self, session: str, endpoint: str) -> None:
        """Bind ``session`` to the endpoint of that name; this counts as its last use."""
        now = self._clock()
        self._bindings[session] = (endpoint, now)
        self._bindings.move_to_end(session)
        if len(self._bindings) > self._limit:
            self._bindings.popitem(last=False)
        if now >= self._next_sweep:
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        bindings = self._bindings
        for _ in range(_SWEPT_AT_ONCE):
            _, last_used = bindings[next(iter(bindings))]
            if now - last_used <= self._ttl_seconds:
                self._next_sweep = now + self._sweep_seconds
                return
            bindings.popitem(last=False)
