"""Decodes, validates and encodes header blocks; decoded blocks are cached.

The ``hpack`` library takes 50 to 100 us for a block, more than the rest of a stream. So the server
announces SETTINGS_HEADER_TABLE_SIZE 0; after that a block does not depend on earlier ones, and a
dict finds a repeated block in 0.1 us. Envoy's blocks are identical unless it adds a header that
differs per stream: with a trace header the cache is useless, and every block is decoded.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

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
    """The header list of a request; blocks with the same bytes share one object."""

    __slots__ = ("content_length", "fields", "memo", "problem", "size_bytes")

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self.size_bytes = sum(map(len, (part for f in fields for part in f)))
        self.size_bytes += _FIELD_OVERHEAD_BYTES * len(fields)
        self.problem, self.content_length = _validated(fields)
        """``problem``: why the request is malformed (RFC 9113 §8.1.1); empty if it is not."""
        self.memo: Any = None
        """Object that the caller derives from these headers and keeps with them."""


class HeaderCache:
    """Headers by the bytes of their block, for all connections and blocks without table references.

    Entries are evicted first in, first out: decoding Envoy's block again after a thousand others
    costs little, and a hit is a single lookup.
    """

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.entries: dict[bytes, Headers] = {}

    def add(self, block: bytes, headers: Headers) -> None:
        """Add an entry; evict the oldest ones until there is room."""
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
    """Decodes the header blocks of one connection.

    Args:
        cache: Shared between connections.
        max_list_bytes: Announced limit; the connection ends at four times as much.
    """

    def __init__(self, cache: HeaderCache, max_list_bytes: int) -> None:
        self._cache = cache
        self._max_list_bytes = max_list_bytes
        self._decoder = Decoder(max_header_list_size=max_list_bytes * _HARD_LIMIT_FACTOR)
        self._is_stateless = False

    @property
    def max_block_bytes(self) -> int:
        """Limit on the length of a block."""
        return self._max_list_bytes * _HARD_LIMIT_FACTOR

    def settings_acknowledged(self) -> None:
        """Apply SETTINGS_HEADER_TABLE_SIZE 0, because the peer has acknowledged it.

        Until then the default of 4096 applies. RFC 9113 §4.3.1 requires an error if the next block
        does not begin with a table size update. Encoders that write only literals may never send
        one; so the table is emptied here, and only a block that refers to it is an error.
        """
        self._decoder.max_allowed_table_size = 0
        self._decoder.header_table_size = 0
        self._is_stateless = True

    def decode(self, block: bytes) -> Headers:
        """Decode ``block``.

        Raises:
            ConnectionFault: It is not valid HPACK, or exceeds the limits by far.
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
        """Return whether the list exceeds the announced limit."""
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
    """Encode ``fields`` as literals without indexing (RFC 7541 §6.2.2).

    The block uses neither the dynamic table nor Huffman coding, so it is valid on any connection.
    """
    block = bytearray()
    for name, value in fields:
        block += b"\x00" + _string(name) + _string(value)
    return bytes(block)


TABLE_SIZE_UPDATE: Final = b"\x20"
"""Prefix of the first block: sets the encoder's table size to 0. It is required if the peer has
reduced its table (RFC 7541 §4.2), and allowed otherwise."""


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
    """Return why ``headers`` are invalid as trailers (§8.1); empty if they are valid."""
    for name, value in headers.fields:
        if problem := _field_problem(name, value):
            return problem
        if name.startswith(b":"):
            return f"pseudo-header {_text(name)} in trailers"
    return ""


def _validated(fields: tuple[Field, ...]) -> tuple[str, int | None]:
    """Return why the request is malformed (empty if it is not), and its content-length."""
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
        # CONNECT, which has no scheme and no path (§8.5), is not supported.
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
