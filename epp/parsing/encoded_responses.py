"""Decodes responses with a content encoding (RFC 9110 §8.4) for their readers.

The response itself passes through encoded. Each piece is decoded as it arrives, up to a limit, so
that a decompression bomb does not block the event loop.
"""

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from zstandard import ZstdDecompressor

from epp.parsing.encoding import GZIP_FORMAT, MAX_WINDOW_BYTES
from epp.parsing.plugins import ResponseReader, Usage

MAX_DECODED_BYTES: Final = 4 << 20
"""Limit for one piece; Envoy's pieces have 64 KiB or less, and JSON shrinks to a tenth."""

_ZSTD_STEP_BYTES = 64
"""Input per call, because the library does not limit output: it decodes to at most 16 blocks of
128 KiB (RFC 8878)."""

Decode = Callable[[bytes], bytes]


class ResponseTooLongError(Exception):
    """A piece of a response exceeds the limit on its decoded length."""


class DecodingReader:
    """A ``ResponseReader`` that passes decoded pieces to ``reader``.

    Its ``feed`` raises the errors of ``decode``: the response is not in the encoding that its
    headers name, or too long.
    """

    def __init__(self, reader: ResponseReader, decode: Decode) -> None:
        self._reader = reader
        self._decode = decode

    def feed(self, chunk: bytes) -> None:
        if plain := self._decode(chunk):
            self._reader.feed(plain)

    def usage(self) -> Usage | None:
        return self._reader.usage()


def response_decoder(headers: Mapping[str, str]) -> Decode | None:
    """Return a decoder of one response's pieces; None without an encoding that is supported here.

    The decoder raises ResponseTooLongError or an error of the library.
    """
    make = _DECODERS.get(headers.get("content-encoding", "").strip().lower())
    return None if make is None else make()


def _gunzip() -> Decode:
    decompressor = zlib.decompressobj(GZIP_FORMAT)

    def decode(chunk: bytes) -> bytes:
        # The library keeps all data after the end, and copies it with every piece. Further members
        # are not decoded: each would cost a decompressor, and no server sends any.
        if decompressor.eof:
            return b""
        plain = decompressor.decompress(chunk, MAX_DECODED_BYTES + 1)
        _check(len(plain))
        return plain

    return decode


def _unzstd() -> Decode:
    decompressor = ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj(
        read_across_frames=True
    )

    def decode(chunk: bytes) -> bytes:
        pieces: list[bytes] = []
        decoded_bytes = 0
        for at in range(0, len(chunk), _ZSTD_STEP_BYTES):
            pieces.append(decompressor.decompress(chunk[at : at + _ZSTD_STEP_BYTES]))
            decoded_bytes += len(pieces[-1])
            _check(decoded_bytes)
        return b"".join(pieces)

    return decode


def _check(decoded_bytes: int) -> None:
    if decoded_bytes > MAX_DECODED_BYTES:
        raise ResponseTooLongError(
            f"a piece of the response is longer than {MAX_DECODED_BYTES} bytes without its encoding"
        )


_DECODERS: Final[Mapping[str, Callable[[], Decode]]] = MappingProxyType(
    {"gzip": _gunzip, "x-gzip": _gunzip, "zstd": _unzstd}
)
