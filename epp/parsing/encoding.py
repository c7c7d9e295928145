"""Decodes request bodies with a content encoding (RFC 9110 §8.4), piece by piece.

A few bytes can decode to thousands of times as many. So the caller chooses the size of the pieces,
and a body is refused once it exceeds the length limit or a multiple of its received length. The
libraries release the GIL while they decode a piece, so this may run in a thread.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Final

from zstandard import ZstdDecompressor, ZstdError

from epp.parsing.errors import BodyTooLongError, CompressionRatioError, ParseError
from epp.parsing.limits import BodyLimits

GZIP_FORMAT = 16 + zlib.MAX_WBITS
MAX_WINDOW_BYTES = 8 << 20
"""Limit of a zstd window; a decoder need not support larger ones (RFC 8878 §3.1.1.1.2)."""

FREE_BYTES: Final = 1 << 20
"""Decoded bytes to which the limit on the ratio does not apply."""

_FED_BYTES = 64 << 10
"""Input per call of zlib, which returns a copy of its unread input."""
_MAX_FED_BYTES = 1 << 20
"""Limit of input without output in one call: empty blocks take up to 100 ms per MiB."""
_IDENTITY = frozenset({"", "identity"})

Body = bytes | memoryview


class _Decoder(ABC):
    """Decodes one body."""

    @abstractmethod
    def read(self, max_bytes: int) -> bytes | None:
        """Return the next decoded bytes, ``max_bytes`` at most; b"" after the last ones.

        Returns None if a large part of the input has produced no output so far.

        Raises:
            ParseError: The body is not in the encoding that its headers name.
        """


class _Copier(_Decoder):
    """Copies a body without an encoding, such as a view of a message."""

    def __init__(self, body: Body) -> None:
        self._body = memoryview(body)
        self._at = 0

    def read(self, max_bytes: int) -> bytes:
        piece = bytes(self._body[self._at : self._at + max_bytes])
        self._at += len(piece)
        return piece


class _Gzip(_Decoder):
    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = 0
        self._fed: Body = b""
        self._decompressor = zlib.decompressobj(GZIP_FORMAT)

    def read(self, max_bytes: int) -> bytes | None:
        decompressor, stop = self._decompressor, self._at + _MAX_FED_BYTES
        while not decompressor.eof:
            if self._at >= stop:
                return None
            if not self._fed:
                self._fed = self._body[self._at : self._at + _FED_BYTES]
                self._at += len(self._fed)
            is_last = not self._fed
            try:
                decoded = decompressor.decompress(self._fed, max_bytes)
            except zlib.error as error:
                raise ParseError(
                    f"the request body is not valid gzip, its content-encoding: {error}"
                ) from None
            self._fed = decompressor.unconsumed_tail
            if decoded:
                return decoded
            if is_last and not decompressor.eof:
                raise ParseError("the gzip of the request body is truncated")
        # A further gzip member would cost a call each; no client is known to send one.
        if decompressor.unused_data or self._at < len(self._body):
            raise ParseError("the request body has data after the end of its gzip")
        return b""


class _Zstd(_Decoder):
    def __init__(self, body: Body) -> None:
        decompressor = ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        self._reader = decompressor.stream_reader(body, read_across_frames=True)

    def read(self, max_bytes: int) -> bytes:
        try:
            return self._reader.read(max_bytes)
        except ZstdError as error:
            raise ParseError(
                f"the request body is not valid zstd, its content-encoding: {error}"
            ) from None


_DECODERS: Final[Mapping[str, Callable[[Body], _Decoder]]] = MappingProxyType(
    {"gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd}
)


class Decoding:
    """The decoding of one body.

    Made by :meth:`of`. :meth:`advance` may be called from any thread, one call at a time.
    """

    __slots__ = ("_body", "_decoder", "_limits", "_max_bytes", "_received_bytes", "decoded_bytes",
                 "is_finished")  # fmt: skip

    def __init__(self, decoder: _Decoder, received_bytes: int, limits: BodyLimits) -> None:
        self._decoder = decoder
        self._received_bytes = received_bytes
        self._limits = limits
        self._max_bytes = limits.max_decompressed_bytes
        if limits.max_ratio:
            by_ratio = max(FREE_BYTES, limits.max_ratio * received_bytes)
            self._max_bytes = min(self._max_bytes, by_ratio)
        self._body = BytesIO()
        self.decoded_bytes = 0
        """The number of bytes decoded so far."""
        self.is_finished = False

    @classmethod
    def of(cls, headers: Mapping[str, str], body: Body, limits: BodyLimits) -> "Decoding | None":
        """Return the decoding of ``body``, whose encoding :func:`is_known`; None without one."""
        name = encoding_of(headers)
        if name in _IDENTITY:
            return None
        return cls(_DECODERS[name](body), len(body), limits)

    @classmethod
    def copy_of(cls, body: Body) -> "Decoding":
        """Return a decoding that copies ``body`` as it is."""
        return cls(_Copier(body), len(body), BodyLimits(len(body), max_ratio=0))

    def advance(self, max_bytes: int) -> None:
        """Decode up to ``max_bytes`` more; fewer if a large input produces little output.

        Raises:
            BodyTooLongError: The body exceeds a limit.
            ParseError: The body is not in the encoding that its headers name.
        """
        end = min(self.decoded_bytes + max_bytes, self._max_bytes + 1)
        while self.decoded_bytes < end:
            piece = self._decoder.read(end - self.decoded_bytes)
            if piece is None:
                return
            if not piece:
                self.is_finished = True
                return
            self._body.write(piece)
            self.decoded_bytes += len(piece)
        if self.decoded_bytes > self._max_bytes:
            self._body = BytesIO()
            raise self._too_long()

    @property
    def body(self) -> bytes:
        """The decoded bytes so far; no copy is made once the decoding is finished."""
        return self._body.getvalue()

    def _too_long(self) -> BodyTooLongError:
        if self._max_bytes >= self._limits.max_decompressed_bytes:
            return BodyTooLongError.above(self._limits.max_decompressed_bytes)
        return CompressionRatioError(
            f"the request body has {self._received_bytes} bytes and decodes to more than"
            f" {self._max_bytes}: no body may grow to more than {self._limits.max_ratio} times"
            " its size; send it without content-encoding"
        )


def is_known(headers: Mapping[str, str]) -> bool:
    """Return whether bodies with these headers can be decoded: one supported encoding, or none."""
    name = encoding_of(headers)
    return name in _IDENTITY or name in _DECODERS


def encoding_of(headers: Mapping[str, str]) -> str:
    """Return the content encoding that headers name, in lower case; "" for none."""
    return headers.get("content-encoding", "").strip().lower()


def decode_whole(headers: Mapping[str, str], body: bytes, limits: BodyLimits) -> bytes:
    """Return ``body`` without its content encoding, in one go.

    Raises:
        BodyTooLongError: The body exceeds a limit.
        ParseError: The body is not in the encoding that its headers name.
    """
    decoding = Decoding.of(headers, body, limits)
    if decoding is None:
        return body
    while not decoding.is_finished:
        decoding.advance(limits.max_decompressed_bytes + 1)
    return decoding.body
