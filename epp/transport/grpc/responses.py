"""Header blocks of responses: the constant headers, and those with a status."""

from functools import lru_cache
from typing import Final

from epp.transport.http2 import encode

_MAX_MESSAGE_BYTES = 1024
_PRINTABLE = frozenset(range(0x20, 0x7F)) - {ord("%")}

_COMMON = ((b":status", b"200"), (b"content-type", b"application/grpc"))

HEADERS: Final = encode(_COMMON)
"""Response headers of calls that are not refused."""


@lru_cache(maxsize=256)
def trailers(code: int, message: str = "") -> bytes:
    """Return the trailers with a gRPC status."""
    return encode(_status(code, message))


@lru_cache(maxsize=256)
def trailers_only(code: int, message: str, *fields: tuple[str, str]) -> bytes:
    """Return a Trailers-Only response: headers and trailers in one block."""
    given = tuple((name.encode(), value.encode()) for name, value in fields)
    return encode((*_COMMON, *_status(code, message), *given))


def http_status(status: int, *fields: tuple[str, str]) -> bytes:
    """Return the response to a request that is not gRPC."""
    given = tuple((name.encode(), value.encode()) for name, value in fields)
    return encode(((b":status", str(status).encode()), *given))


def _status(code: int, message: str) -> tuple[tuple[bytes, bytes], ...]:
    status = ((b"grpc-status", str(int(code)).encode()),)
    return (*status, (b"grpc-message", _percent_encoded(message))) if message else status


def _percent_encoded(message: str) -> bytes:
    """Encode all but printable ASCII as %XX (gRPC over HTTP/2, Status-Message)."""
    cut = message.encode("utf-8", "replace")[:_MAX_MESSAGE_BYTES]
    encoded = cut.decode("utf-8", "ignore").encode()  # drops a truncated character
    return b"".join(bytes((byte,)) if byte in _PRINTABLE else b"%%%02X" % byte for byte in encoded)
