"""``header-based-testing-filter``: keeps the endpoints that a request header lists; for tests.

The header ``test-epp-endpoint-selection`` lists addresses, parted by commas: ``ip:port`` for one
endpoint, ``ip`` for all of that address, whatever their ports. An IPv6 address stands in brackets,
which may be left out where no port follows; upper and lower case are the same. What is no
candidate's address is ignored. Without the header, or if it lists no candidate, nothing is kept and
the request fails: made for conformance tests, not for production. What is listed after the first
1000 entries is ignored.

Reads:  the header ``test-epp-endpoint-selection``, ``endpoint.address``.
Example::

    plugins:
      - type: header-based-testing-filter
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest

HEADER: Final = "test-epp-endpoint-selection"
_MOST_LISTED: Final = 1000


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``header-based-testing-filter``: none."""


class HeaderBasedTestingFilter(Filter):
    """Keeps the endpoints whose address stands in a request header."""

    type: ClassVar[str] = "header-based-testing-filter"
    fails_open: ClassVar[bool] = False

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        listed = request.headers.get(HEADER, "").lower().split(",", _MOST_LISTED)[:_MOST_LISTED]
        asked = {entry.strip() for entry in listed}
        asked.discard("")
        return [endpoint for endpoint in endpoints if not asked.isdisjoint(_names(endpoint))]


def _names(endpoint: Endpoint) -> tuple[str, str, str]:
    """Return what an endpoint may be listed as, in lower case."""
    address = endpoint.address.lower()
    host = address.rpartition(":")[0]
    return address, host, host.strip("[]")
