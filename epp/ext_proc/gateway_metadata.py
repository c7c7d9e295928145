"""gRPC metadata by which a gateway says what it can do: its filter's ``initial_metadata``."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import structlog

_log = structlog.get_logger(__name__)

MAX_DESTINATIONS: Final = "x-gateway-max-destination-endpoints"
"""How many endpoints the gateway can use for one request: the picked one, and one for each retry.

Without it the gateway gets one, because an ORIGINAL_DST cluster answers a list with 503."""

HEDGING: Final = "x-gateway-hedging"
"""``true`` if the endpoint picker may set the headers of Envoy that begin a second try."""

POOL: Final = "x-gateway-inference-pool"
"""Name of the InferencePool of the gateway's route, ``NAME`` or ``NAMESPACE/NAME``, for an endpoint
picker that serves several; as metadata of the stream, or as a header of the request."""

_LIMIT: Final = 8


class GatewayAbilities(NamedTuple):
    """What the gateway of a stream can do."""

    max_destinations: int = 1
    """How many endpoints it can use for one request."""
    can_hedge: bool = False
    """Whether it can send a request to a further endpoint while the first has not responded."""


DEFAULT: Final = GatewayAbilities()


def abilities(headers: Mapping[str, str]) -> GatewayAbilities:
    """Return the abilities that a gateway states in its gRPC metadata."""
    asked = headers.get(MAX_DESTINATIONS)
    return DEFAULT if asked is None else _abilities(asked, headers.get(HEDGING) == "true")


@lru_cache(maxsize=64)  # logs each wrong value once
def _abilities(asked: str, can_hedge: bool) -> GatewayAbilities:
    if asked.isascii() and asked.isdigit() and 1 <= int(asked) <= _LIMIT:
        return GatewayAbilities(int(asked), can_hedge and int(asked) > 1)
    _log.warning(
        "gRPC metadata of the gateway ignored",
        key=MAX_DESTINATIONS,
        value=asked[:64],
        problem=f"expected a number from 1 to {_LIMIT}",
    )
    return DEFAULT
