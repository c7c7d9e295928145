"""Session tokens, which name the endpoint that served a client.

Without a key a token is base64 of ``namespace/name``, as in the Go EPP, and anyone can create
one. With a key it is ``base64(name).expiry.signature``. The expiry is in whole seconds since 1970
(0 for none); the signature is the first 128 bits of HMAC-SHA256 over the header's name, the expiry
and base64(name). It includes the header so that the token of one profile is not valid for another.
Every replica with the same key can verify it.
"""

import hmac
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

LONGEST_TOKEN: Final = 1024
"""Maximum characters of an endpoint's name in base64, without expiry and signature."""

_LONGEST_EXPIRY: Final = 12
_MAC_BYTES: Final = 16
_MAC_CHARACTERS: Final = 22
_LONGEST: Final = LONGEST_TOKEN + _LONGEST_EXPIRY + _MAC_CHARACTERS + 2

SHORTEST_KEY_BYTES: Final = 32
LONGEST_KEY_BYTES: Final = 4096


class TokenRefusal(StrEnum):
    """Why a token is ignored."""

    TOO_LONG = "too-long"
    MALFORMED = "malformed"
    UNSIGNED = "unsigned"
    FORGED = "forged"
    """Not signed with a known key for this header."""
    EXPIRED = "expired"


class SessionTokens:
    """Creates tokens and verifies those of clients.

    Args:
        header: Name of the header with the token.
        keys: The first one signs, all of them verify; without keys, tokens are not signed.
        ttl_seconds: Validity of a signed token; 0 for no expiry.
        ignore_unsigned: Without keys, ignore every token.
    """

    def __init__(
        self,
        header: str,
        keys: Sequence[bytes] = (),
        *,
        ttl_seconds: float = 0.0,
        ignore_unsigned: bool = False,
    ) -> None:
        self._header = header.encode()
        self._keys = tuple(keys)
        self._ttl_seconds = ttl_seconds
        self._ignore_unsigned = ignore_unsigned or bool(keys)

    def token_of(self, name: str, now: float) -> str:
        """Return the token of an endpoint; ``now`` in seconds since 1970."""
        encoded = b64encode(name.encode()).decode()
        if not self._keys:
            return encoded
        expiry = str(int(now + self._ttl_seconds)) if self._ttl_seconds else "0"
        return f"{encoded}.{expiry}.{self._signature(self._keys[0], expiry, encoded)}"

    def endpoint_of(self, token: str, now: float) -> str | TokenRefusal:
        """Return the name of the endpoint, or the reason why the token is ignored."""
        encoded, separator, rest = token[: _LONGEST + 1].partition(".")
        if len(token) > _LONGEST or len(encoded) > LONGEST_TOKEN:
            return TokenRefusal.TOO_LONG
        if separator and self._keys:
            fault = self._fault_of(encoded, rest, now)
        elif separator:
            fault = TokenRefusal.MALFORMED
        else:
            fault = TokenRefusal.UNSIGNED if self._ignore_unsigned else None
        if fault is not None:
            return fault
        try:
            return b64decode(encoded, validate=True).decode()
        except ValueError:
            return TokenRefusal.MALFORMED

    def _fault_of(self, encoded: str, rest: str, now: float) -> TokenRefusal | None:
        expiry, _, signature = rest.partition(".")
        if not (expiry.isascii() and expiry.isdecimal() and signature.isascii()):
            return TokenRefusal.MALFORMED
        # All keys are tried, so that the time does not reveal which one matched.
        known = [
            hmac.compare_digest(self._signature(key, expiry, encoded), signature)
            for key in self._keys
        ]
        if not any(known):
            return TokenRefusal.FORGED
        is_over = int(expiry) <= now if expiry != "0" else self._ttl_seconds > 0
        return TokenRefusal.EXPIRED if is_over else None

    def _signature(self, key: bytes, expiry: str, encoded: str) -> str:
        # None of the three can contain a zero byte.
        message = b"\0".join((self._header, expiry.encode(), encoded.encode(errors="replace")))
        mac = hmac.digest(key, message, "sha256")[:_MAC_BYTES]
        return urlsafe_b64encode(mac).decode().rstrip("=")


def key_of(field: str, path: str) -> bytes:
    """Return the key in a file, without surrounding whitespace.

    Raises:
        ValueError: The file cannot be read or has no valid key; the message begins with ``field``.
    """
    try:
        with Path(path).open("rb") as file:
            key = file.read(LONGEST_KEY_BYTES + 1).strip()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ValueError(f"{field}: {path}: cannot be read: {why}") from error
    if not SHORTEST_KEY_BYTES <= len(key) <= LONGEST_KEY_BYTES:
        what = "more" if len(key) > LONGEST_KEY_BYTES else str(len(key))
        raise ValueError(
            f"{field}: {path}: a key has {SHORTEST_KEY_BYTES} to {LONGEST_KEY_BYTES} bytes, this"
            f" has {what}; `openssl rand -base64 32` makes one"
        )
    return key
