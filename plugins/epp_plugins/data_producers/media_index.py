"""Which media were sent to which endpoint: a least-recently-used list per endpoint.

Clients choose what is in their requests, so everything is bounded: the media kept per endpoint,
those of all endpoints together, and what is compared for one request. An entry is a 64-bit hash,
however long the name of the medium is; two media of one hash only cost a request a worse endpoint.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

from epp.scheduling import Endpoint

MOST_ENTRIES: Final = 131_072
"""Media kept over all endpoints, 120 bytes each; every endpoint gets the same share of them."""
MOST_LOOKUPS: Final = 8192
"""Pairs of a medium and an endpoint that are compared for one request: about 1 ms."""


class MediaIndex:
    """Media by endpoint, the one sent last at the end.

    Args:
        capacity: Media kept per endpoint at most.
    """

    def __init__(self, capacity: int) -> None:
        self._wanted = capacity
        self.capacity = capacity
        """Media kept per endpoint now: less than wanted where there are many endpoints."""
        self._held: dict[Endpoint, OrderedDict[int, None]] = {}

    def add_endpoint(self, endpoint: Endpoint) -> None:
        """Keep media for ``endpoint`` too; the share of the others may get smaller."""
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
        """Return how many media are kept, summed over the endpoints."""
        return sum(len(held) for held in self._held.values())

    def add(self, endpoint: Endpoint, media: Iterable[int]) -> None:
        """Take note that ``media`` were sent to ``endpoint``, unless that has left."""
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
        """Return the media that each of ``endpoints`` holds, without those that hold none.

        Of more media than :data:`MOST_LOOKUPS` allows the first are compared.
        """
        asked = list(islice(media, max(1, MOST_LOOKUPS // max(1, len(endpoints)))))
        found = {}
        for endpoint in endpoints:
            held = self._held.get(endpoint)
            if held and (there := [medium for medium in asked if medium in held]):
                found[endpoint] = there
        return found

    def _set_capacity(self) -> None:
        self.capacity = min(self._wanted, max(1, MOST_ENTRIES // max(1, len(self._held))))

    def _shrink(self, held: OrderedDict[int, None]) -> None:
        for _ in range(len(held) - self.capacity):
            held.popitem(last=False)
