"""The signed header that sends one request to a given endpoint: ``x-epp-force-endpoint``.

Its value is ``ENDPOINT;exp=SECONDS;sig=HEX``: the endpoint's name or ``ip:port``, the Unix time at
which the header expires, and the HMAC-SHA256 of both. It is bound to no request: whoever has it can
use it for any request until it expires.
"""

import hmac
import re
from collections.abc import Sequence
from typing import Final

from epp.request_control.errors import ForceDeniedError

FORCE_HEADER: Final = "x-epp-force-endpoint"
MAX_LIFETIME_SECONDS: Final = 600

_DOMAIN: Final = b"epp-force-endpoint-v1"
"""The first line of the signed text, so that no signature made with the key for another purpose is
valid."""
_VALUE: Final = re.compile(r"([\x21-\x3a\x3c-\x7e]{1,512});exp=(\d{1,11});sig=([0-9a-f]{64})")
_AGAIN: Final = "make a new one with `epp force-endpoint`"


def signed(endpoint: str, expires_at: int, key: bytes) -> str:
    """Return the value of the header.

    Args:
        endpoint: Name or ``ip:port`` of the endpoint.
        expires_at: Unix time in seconds.
        key: One line of the key file.

    Raises:
        ValueError: The endpoint cannot be written in a header.
    """
    value = f"{endpoint};exp={expires_at};sig={_signature(endpoint, str(expires_at), key)}"
    if _VALUE.fullmatch(value) is None:
        raise ValueError(
            f"{endpoint!r} is no name or address of an endpoint: up to 512 visible ASCII"
            " characters, without a semicolon"
        )
    return value


def verified(value: str, keys: Sequence[bytes], now: float) -> str:
    """Return the endpoint that a header names.

    Args:
        value: The value of the header.
        keys: One of them must have signed it.
        now: Unix time in seconds.

    Raises:
        ForceDeniedError: The header is malformed, signed with another key, expired, or valid for
            too long.
    """
    match = _VALUE.fullmatch(value)
    if match is None:
        raise ForceDeniedError(
            f"header {FORCE_HEADER} is malformed: it must be"
            f" ENDPOINT;exp=UNIX_SECONDS;sig=HMAC_SHA256_HEX; {_AGAIN}"
        )
    endpoint, expires_at, signature = match.groups()
    # All keys are tried, so that the time does not tell which one fits.
    fits = [hmac.compare_digest(_signature(endpoint, expires_at, key), signature) for key in keys]
    if not any(fits):
        raise ForceDeniedError(
            f"header {FORCE_HEADER}: no key of --force-endpoint-key-file has made this signature;"
            " sign with a key of that file: `epp force-endpoint --key-file FILE`"
        )
    left = int(expires_at) - now
    if left <= 0:
        raise ForceDeniedError(f"header {FORCE_HEADER} expired {-left:.0f} s ago; {_AGAIN}")
    if left > MAX_LIFETIME_SECONDS:
        raise ForceDeniedError(
            f"header {FORCE_HEADER} is valid for {left:.0f} s more, but at most"
            f" {MAX_LIFETIME_SECONDS} s are allowed; shorten --for, or set the clock of the host"
            " that signs"
        )
    return endpoint


def _signature(endpoint: str, expires_at: str, key: bytes) -> str:
    text = b"\n".join((_DOMAIN, endpoint.encode(), expires_at.encode()))
    return hmac.digest(key, text, "sha256").hex()
