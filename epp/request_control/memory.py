"""The memory that a request holds until it is sent on, and the source of a request.

The stream counts the bytes that arrive. Derived data that is kept (the decoded body, the body with
another model name, the prompt of a waiting request) is counted here, on the same account.
"""

from collections.abc import Iterable, Mapping
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Final, Protocol

DEFAULT_SOURCE_HEADERS: Final = ("x-envoy-external-address", "x-forwarded-for")
"""Envoy sets the first to the client's address as its trusted proxies report it, and appends the
address of the downstream connection to the second (``use_remote_address``)."""

_MAX_SOURCE_CHARS = 64
_MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4-mapped IPv6 address."""


class RequestMemory(Protocol):
    """The memory account of one request; the stream, which owns it, releases it as a whole."""

    @property
    def held_bytes(self) -> int:
        """Bytes on the account now."""

    def hold(self, size: int) -> None:
        """Add ``size`` bytes to the account.

        Raises:
            HeldBytesError: There is no memory left for them.
        """


class Uncounted:
    """The account of a request whose memory is not limited."""

    held_bytes = 0

    def hold(self, size: int) -> None:
        """Count nothing."""


UNCOUNTED: Final = Uncounted()


def source_of(headers: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the source of a request: the last entry of the first of ``names`` that it has.

    The gateway appends the last entry; a client can forge all others. An IPv6 address is replaced
    by its /64 network, because one client has 2**64 addresses (RFC 6177). Returns "" if the request
    has none of the headers.
    """
    for name in names:
        if value := headers.get(name):
            source = value.rpartition(",")[2].strip()[:_MAX_SOURCE_CHARS]
            return _network(source) if ":" in source else source
    return ""


def _network(source: str) -> str:
    """Return the /64 network of an IPv6 address; any other text unchanged."""
    # Called for all streams when memory is short: the ipaddress module would take 13 us for each.
    try:
        packed = inet_pton(AF_INET6, source.partition("%")[0])
    except (OSError, ValueError):
        return source
    if packed.startswith(_MAPPED):
        return inet_ntop(AF_INET, packed[len(_MAPPED) :])
    return inet_ntop(AF_INET6, packed[:8] + bytes(8)) + "/64"
