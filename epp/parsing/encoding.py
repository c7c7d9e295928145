"""Bodies without their content encoding (RFC 9110 §8.4), never longer than a limit."""

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from zstandard import ZstdDecompressor, ZstdError

from epp.parsing.errors import BodyTooLongError, ParseError

GZIP_FORMAT = 16 + zlib.MAX_WBITS
MAX_WINDOW_BYTES = 8 << 20
"""What a sender of zstd may have us hold; no decoder has to (RFC 8878 §3.1.1.1.2)."""


def decoder_of(headers: Mapping[str, str]) -> Callable[[bytes, int], bytes] | None:
    """Return what takes the content encoding off a body; None if it has another or several.

    That function takes the body and the most bytes that it may return, and raises ParseError.
    """
    return _DECODERS.get(headers.get("content-encoding", "").strip().lower())


def _identity(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise _too_long(limit)
    return body


def _gunzip(body: bytes, limit: int) -> bytes:
    decompressor = zlib.decompressobj(GZIP_FORMAT)
    try:
        decoded = decompressor.decompress(body, limit + 1)
    except zlib.error as error:
        raise ParseError(f"the request body is not gzip, as its headers say: {error}") from None
    if len(decoded) > limit:
        raise _too_long(limit)
    if not decompressor.eof:
        raise ParseError("the request body is gzip that has been cut off")
    # Further members would each cost a call, and nobody sends any.
    if decompressor.unused_data:
        raise ParseError("the request body has something after the end of its gzip")
    return decoded


def _unzstd(body: bytes, limit: int) -> bytes:
    decompressor = ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        decoded = decompressor.stream_reader(body, read_across_frames=True).read(limit + 1)
    except ZstdError as error:
        raise ParseError(f"the request body is not zstd, as its headers say: {error}") from None
    if len(decoded) > limit:
        raise _too_long(limit)
    return decoded


def _too_long(limit: int) -> BodyTooLongError:
    return BodyTooLongError(f"the request body is longer than {limit} bytes")


_DECODERS: Final[Mapping[str, Callable[[bytes, int], bytes]]] = MappingProxyType(
    {
        "": _identity,
        "identity": _identity,
        "gzip": _gunzip,
        "x-gzip": _gunzip,
        "zstd": _unzstd,
    }
)
