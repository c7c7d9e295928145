"""Bounds the length of ids that clients choose.

Flows, sessions and the like are stored in tables by an id from a header. Long ids are replaced when
the header is read, so that all later code gets short ones.
"""

from hashlib import sha256
from typing import Final

MAX_ID_BYTES: Final = 64
_HASH_DIGITS: Final = 32
_START_BYTES: Final = MAX_ID_BYTES - _HASH_DIGITS - 1


def bounded_id(text: str) -> str:
    """Return ``text`` if it takes at most 64 bytes, else its beginning, ``#`` and its hash.

    The hash has 128 bits in hexadecimal digits, so clients cannot make two long ids collide. It is
    the same in every replica. Text that cannot be encoded as UTF-8 is replaced, too.
    """
    if len(text) <= MAX_ID_BYTES and text.isascii():
        return text
    try:
        encoded = text.encode()
        if len(encoded) <= MAX_ID_BYTES:
            return text
    except UnicodeEncodeError:  # half of a surrogate pair
        encoded = text.encode(errors="surrogatepass")
    start = encoded[:_START_BYTES].decode(errors="ignore")
    # Half the time of blake2b for 50 KB: OpenSSL uses hardware instructions.
    return f"{start}#{sha256(encoded).hexdigest()[:_HASH_DIGITS]}"
