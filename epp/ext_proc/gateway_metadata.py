"""gRPC metadata by which a gateway says what it can do: its filter's ``initial_metadata``."""

from functools import lru_cache
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

MAX_DESTINATIONS: Final = "x-gateway-max-destination-endpoints"
"""How many endpoints the gateway can use for one request: the picked one, and one for each retry.

Without it the gateway gets one, because an ORIGINAL_DST cluster answers a list with 503."""

_LIMIT: Final = 8


@lru_cache(maxsize=64)  # logs each wrong value once
def max_destinations(text: str) -> int:
    """Return the value of :data:`MAX_DESTINATIONS`; 1 if it is invalid."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _LIMIT:
        return int(text)
    _log.warning(
        "gRPC metadata of the gateway ignored",
        key=MAX_DESTINATIONS,
        value=text[:64],
        problem=f"expected a number from 1 to {_LIMIT}",
    )
    return 1
