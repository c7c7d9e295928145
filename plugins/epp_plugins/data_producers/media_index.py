"""Records which media were sent to which endpoint, in one least-recently-used list per endpoint.

Clients choose the media of their requests, so everything is bounded: media per endpoint, media in
total, and comparisons per request. An entry is a 64-bit hash; a hash collision can only lead to a
less suitable endpoint.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from heapq import nlargest
from itertools import islice
from typing import Final

from epp.scheduling import Endpoint

MAX_ENTRIES: Final = 131_072
"""Maximum media kept for all endpoints, 120 bytes each, divided equally among the endpoints."""
MAX_LOOKUPS: Final = 8192
"""Pairs of a medium and an endpoint that are compared for one request: about 1 ms."""


class MediaIndex:
    """Media by endpoint, from least to most recently sent.

    Args:
        capacity: Maximum media kept per endpoint.
    """

    def __init__(self, capacity: int) -> None:
        self._wanted = capacity
        self.capacity = capacity
        """Current maximum per endpoint: less than wanted if there are many endpoints."""
        self._held: dict[Endpoint, OrderedDict[int, None]] = {}

    def add_endpoint(self, endpoint: Endpoint) -> None:
        """Start recording media for ``endpoint``; this may reduce the share of the others."""
        self._held.setdefault(endpoint, OrderedDict())
        self._set_capacity()
        for held in self._held.values():
            if len(held) > self.capacity:
                self._shrink(held)

    def remove_endpoint(self, endpoint: Endpoint) -> None:
        """Forget ``endpoint``."""
        self._held.pop(endpoint, None)
        self._set_capacity()

    def entries(self) -> int:
        """Return the number of entries of all endpoints."""
        return sum(len(held) for held in self._held.values())

    def largest(self, count: int) -> dict[str, int]:
        """Return the numbers of entries of the ``count`` largest endpoints, by name."""
        held = {endpoint.name: len(media) for endpoint, media in self._held.items()}
        return {name: held[name] for name in nlargest(count, held, key=held.__getitem__)}

    def add(self, endpoint: Endpoint, media: Iterable[int]) -> None:
        """Record that ``media`` were sent to ``endpoint``; ignored if it was removed."""
        held = self._held.get(endpoint)
        if held is None:
            return
        for medium in media:
            held[medium] = None
            held.move_to_end(medium)
        self._shrink(held)

    def match(
        self, endpoints: Sequence[Endpoint], media: Collection[int]
    ) -> dict[Endpoint, list[int]]:
        """Return the media held by each of ``endpoints``, without endpoints that hold none.

        Compares only the first media if there are more than :data:`MAX_LOOKUPS` allows.
        """
        asked = list(islice(media, max(1, MAX_LOOKUPS // max(1, len(endpoints)))))
        found = {}
        for endpoint in endpoints:
            held = self._held.get(endpoint)
            if held and (there := [medium for medium in asked if medium in held]):
                found[endpoint] = there
        return found

    def _set_capacity(self) -> None:
        self.capacity = min(self._wanted, max(1, MAX_ENTRIES // max(1, len(self._held))))

    def _shrink(self, held: OrderedDict[int, None]) -> None:
        for _ in range(len(held) - self.capacity):
            held.popitem(last=False)
