"""Header blocks: decoding them once, checking them once, and writing our own.

HPACK is the ``hpack`` library's. It takes 50 to 100 us for a block, more than the rest of a stream,
so the table of the peer's encoder is switched off (SETTINGS_HEADER_TABLE_SIZE 0) and from then on a
block's bytes alone say what it means: a dict finds headers seen before in 0.1 us. Envoy's blocks
are all alike as long as it sends nothing of its own per stream; with a trace header in each of them
the cache is useless, and every block is decoded.
"""

import re
from collections.abc import Iterable
from typing import Any

from hpack import Decoder, HPACKError, OversizedHeaderListError

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.errors import ConnectionFault

Field = tuple[bytes, bytes]

_HARD_LIMIT_FACTOR = 4
_CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_REQUIRED = (b":method", b":scheme", b":path")
_NAME_BYTES = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_BAD_VALUE_BYTES = frozenset(b"\x00\r\n")
_LENGTH = re.compile(rb"[0-9]{1,18}").fullmatch

_LENGTH_PREFIX, _LENGTH_MORE = 127, 128  # RFC 7541 §5.1, with a prefix of 7 bits

_FIELD_OVERHEAD_BYTES = 32  # RFC 9113 §6.5.2
# Measured: the objects around an entry, and around each of its fields, those in ``memo`` included.
_CACHE_ENTRY_BYTES, _CACHE_FIELD_BYTES = 1000, 350


class Headers:
    """The header list of a request; the same object for all blocks with the same bytes."""

    __slots__ = ("content_length", "fields", "memo", "problem", "size_bytes")

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self.size_bytes = sum(map(len, (part for f in fields for part in f)))
        self.size_bytes += _FIELD_OVERHEAD_BYTES * len(fields)
        self.problem, self.content_length = _examined(fields)
        """``problem``: what makes it malformed (RFC 9113 §8.1.1), "" for nothing."""
        self.memo: Any = None
        """For the layer above: what it has made of these headers."""


class HeaderCache:
    """Headers by the bytes of their block, for blocks that touch no table; for all connections.

    First in, first out: decoding Envoy's block again, once in a thousand, costs nothing, and a hit
    is one look-up.
    """

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.entries: dict[bytes, Headers] = {}

    def add(self, block: bytes, headers: Headers) -> None:
        """Keep ``headers``; the oldest go when there is no room."""
        size = self._cost(block, headers)
        if size > self.max_bytes:
            return
        entries = self.entries
        self.bytes += size
        while self.bytes > self.max_bytes:
            oldest = next(iter(entries))
            self.bytes -= self._cost(oldest, entries.pop(oldest))
        entries[block] = headers

    @staticmethod
    def _cost(block: bytes, headers: Headers) -> int:
        fields = len(headers.fields) * _CACHE_FIELD_BYTES
        return len(block) + 2 * headers.size_bytes + fields + _CACHE_ENTRY_BYTES


class HeaderDecoder:
    """The receiving side of one connection's HPACK."""

    def __init__(self, cache: HeaderCache, max_list_bytes: int) -> None:
        self._cache = cache
        self._max_list_bytes = max_list_bytes
        self._decoder = Decoder(max_header_list_size=max_list_bytes * _HARD_LIMIT_FACTOR)
        self._is_stateless = False

    @property
    def max_block_bytes(self) -> int:
        """No block that long can be within the limits."""
        return self._max_list_bytes * _HARD_LIMIT_FACTOR

    def settings_acknowledged(self) -> None:
        """Take note that the peer knows SETTINGS_HEADER_TABLE_SIZE 0; 4096 was valid so far.

        RFC 9113 §4.3.1 wants an error for the next block unless it begins with a table size update.
        A block that names no table entry means the same either way, and encoders that only write
        literals may never send one; so the table is emptied here, and only a block that refers to
        it is an error.
        """
        self._decoder.max_allowed_table_size = 0
        self._decoder.header_table_size = 0
        self._is_stateless = True

    def decode(self, block: bytes) -> Headers:
        """Return what ``block`` means.

        Raises:
            ConnectionFault: It is no HPACK, or far beyond the limits; the table is out of step.
        """
        if not self._is_stateless:
            return self._decoded(block)
        cache = self._cache
        headers = cache.entries.get(block)
        if headers is None:
            cache.misses += 1
            headers = self._decoded(block)
            if not headers.problem and not self.is_oversized(headers):
                cache.add(block, headers)
        else:
            cache.hits += 1
        return headers

    def is_oversized(self, headers: Headers) -> bool:
        """Return whether the list is above the announced limit."""
        return headers.size_bytes > self._max_list_bytes

    def _decoded(self, block: bytes) -> Headers:
        try:
            fields = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"header list above {self._decoder.max_header_list_size} bytes",
            ) from None
        except HPACKError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, _short(error)) from None
        return Headers(tuple((bytes(name), bytes(value)) for name, value in fields))


def encode(fields: Iterable[Field]) -> bytes:
    """Return a block of literals that are not indexed (RFC 7541 §6.2.2): the same bytes anywhere.

    It uses neither table nor Huffman, so whatever HEADER_TABLE_SIZE the peer announces holds.
    """
    block = bytearray()
    for name, value in fields:
        block += b"\x00" + _string(name) + _string(value)
    return bytes(block)


TABLE_SIZE_UPDATE = b"\x20"
"""Sets our encoder's table to 0; has to stand before the first block if the peer shrinks its own
(RFC 7541 §4.2), and may always."""


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < _LENGTH_PREFIX:
        return bytes((size,)) + text
    size -= _LENGTH_PREFIX
    length = bytearray((_LENGTH_PREFIX,))
    while size >= _LENGTH_MORE:
        length.append(size % _LENGTH_MORE + _LENGTH_MORE)
        size //= _LENGTH_MORE
    length.append(size)
    return bytes(length) + text


def trailers_problem(headers: Headers) -> str:
    """Return what is wrong with ``headers`` as trailers: they have no pseudo-headers (§8.1)."""
    for name, value in headers.fields:
        if problem := _field_problem(name, value):
            return problem
        if name.startswith(b":"):
            return f"pseudo-header {_text(name)} in trailers"
    return ""


def _examined(fields: tuple[Field, ...]) -> tuple[str, int | None]:
    """Return what makes the request malformed, and its content-length."""
    pseudo: dict[bytes, bytes] = {}
    content_length: int | None = None
    is_regular = False
    for name, value in fields:
        if problem := _field_problem(name, value):
            return problem, None
        if name.startswith(b":"):
            if name not in _PSEUDO or name in pseudo or is_regular:
                return f"pseudo-header {_text(name)} unknown, repeated or late", None
            pseudo[name] = value
            continue
        is_regular = True
        if name == b"content-length":
            if not _LENGTH(value) or (content_length is not None and content_length != int(value)):
                return "content-length is not one number", None
            content_length = int(value)
    for name in _REQUIRED:
        # CONNECT, which has no scheme and no path (§8.5), is nothing this server offers.
        if not pseudo.get(name):
            return f"pseudo-header {_text(name)} missing or empty", None
    return "", content_length


def _field_problem(name: bytes, value: bytes) -> str:
    bare = name[1:] if name.startswith(b":") else name
    if not bare or not _NAME_BYTES.issuperset(bare):
        return f"field name {_text(name)} is not lower-case and printable"  # §8.2.1
    if not _BAD_VALUE_BYTES.isdisjoint(value) or value != value.strip(b" \t"):
        return f"value of {_text(name)} has a NUL, a line break, or blanks around it"
    if name in _CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
        return f"field {_text(name)} is specific to HTTP/1.1 connections"  # §8.2.2
    return ""


def _text(name: bytes) -> str:
    return repr(name[:40].decode("latin-1"))


def _short(error: Exception) -> str:
    return str(error)[:100]
