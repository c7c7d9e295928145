"""``header-based-testing-filter``: keeps the endpoints that a request header lists; for tests.

The header ``test-epp-endpoint-selection`` is a comma-separated list of addresses: ``ip:port`` for
one endpoint, ``ip`` for all endpoints with that address. IPv6 addresses are in brackets, which are
optional without a port; the comparison is case-insensitive. Addresses that are not those of a
candidate are ignored. Without the header, or if it lists no candidate, no endpoint is kept and the
request fails: the filter is for conformance tests, not for production. Only the first 1000 entries
are read.

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
_MAX_LISTED: Final = 1000


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``header-based-testing-filter``: none."""


class HeaderBasedTestingFilter(Filter):
    """Keeps the endpoints whose address is in a request header."""

    type: ClassVar[str] = "header-based-testing-filter"
    fails_open: ClassVar[bool] = False

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        listed = request.headers.get(HEADER, "").lower().split(",", _MAX_LISTED)[:_MAX_LISTED]
        asked = {entry.strip() for entry in listed}
        asked.discard("")
        return [endpoint for endpoint in endpoints if not asked.isdisjoint(_names(endpoint))]


def _names(endpoint: Endpoint) -> tuple[str, str, str]:
    """Return the forms in which an endpoint may be listed, in lower case."""
    address = endpoint.address.lower()
    host = address.rpartition(":")[0]
    return address, host, host.strip("[]")
