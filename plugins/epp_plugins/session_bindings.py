"""Bindings of sessions to endpoints, in a table of limited size.

A binding expires when it has not been used for its time to live. Bindings are ordered by their last
use, so the ones to remove are always first: the oldest if the table is full, and expired ones in
sweeps, a few with each use, so that no single request pays for many of them. There is no background
task.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

LIMIT: Final = 65_536
"""Maximum bindings: 15 MiB with ids of 36 characters, 17 MiB with the longest (64)."""
_SWEPT_AT_ONCE: Final = 64
_DUMPED_ENDPOINTS: Final = 100
"""Maximum endpoints in the dumped state."""


class SessionBindings:
    """Endpoint names by session id.

    Args:
        ttl_seconds: Time after which an unused binding expires.
        sweep_seconds: Time between two sweeps.
        clock: Returns seconds, monotonic.
        limit: Maximum bindings.
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
        # Not a dict: finding its first item walks over all removed entries.
        self._bindings: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._next_sweep = clock() + sweep_seconds

    def __len__(self) -> int:
        """Return the number of bindings, including expired ones that were not removed yet."""
        return len(self._bindings)

    def endpoint_of(self, session: str) -> str:
        """Return the name of the endpoint that ``session`` is bound to, or ""."""
        binding = self._bindings.get(session)
        if binding is None or self._clock() - binding[1] > self._ttl_seconds:
            return ""
        return binding[0]

    def bind(self, session: str, endpoint: str) -> None:
        """Bind ``session`` to the endpoint named ``endpoint``; this counts as a use."""
        now = self._clock()
        self._bindings[session] = (endpoint, now)
        self._bindings.move_to_end(session)
        if len(self._bindings) > self._limit:
            self._bindings.popitem(last=False)
        if now >= self._next_sweep:
            self._sweep(now)

    def dump_state(self) -> Mapping[str, object]:
        """Return the number of bindings, in total and per endpoint for those that have the most."""
        bound = Counter(endpoint for endpoint, _ in self._bindings.values())
        return {
            "bindings": len(self._bindings),
            "limit": self._limit,
            "bindings_by_endpoint": dict(bound.most_common(_DUMPED_ENDPOINTS)),
        }

    def _sweep(self, now: float) -> None:
        bindings = self._bindings
        for _ in range(_SWEPT_AT_ONCE):
            _, last_used = bindings[next(iter(bindings))]
            if now - last_used <= self._ttl_seconds:
                self._next_sweep = now + self._sweep_seconds
                return
            bindings.popitem(last=False)
