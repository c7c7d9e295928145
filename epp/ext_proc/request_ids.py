"""Ids for requests that come without one."""

import os


def new_request_id() -> str:
    """Return a random UUID (version 4, RFC 9562 §5.4), as Envoy makes them."""
    # 1.2 us; uuid.uuid4() takes 2.5, most of it for a UUID object.
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
