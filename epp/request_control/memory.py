"""The memory that one request takes until it is sent on, and the source of the request.

The stream counts what arrives. What is made of it and kept (the decoded body, the body with another
model name, the prompt of a request that waits) is counted here, on the same account.
"""

from collections.abc import Iterable, Mapping
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Final, Protocol

DEFAULT_SOURCE_HEADERS: Final = ("x-envoy-external-address", "x-forwarded-for")
"""Envoy sets the first to the client's address, past the proxies that it trusts, and appends to the
second the address that it has seen itself (``use_remote_address``)."""

_MAX_SOURCE_CHARS = 64
_MAPPED = bytes(10) + b"\xff\xff"
"""What an address of IPv4 begins with when it is written as one of IPv6."""


class RequestMemory(Protocol):
    """The account of one request; its owner, the stream, gives everything back at once."""

    @property
    def held_bytes(self) -> int:
        """Bytes on the account now."""

    def hold(self, size: int) -> None:
        """Put ``size`` more bytes on the account.

        Raises:
            HeldBytesError: There is no memory left for them.
        """


class Uncounted:
    """The account of a request that nobody counts."""

    held_bytes = 0

    def hold(self, size: int) -> None:
        """Count nothing."""


UNCOUNTED: Final = Uncounted()


def source_of(headers: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the source of a request: the last entry of the first of these headers that it has.

    The gateway appends the last entry; a client can write all others. Of an IPv6 address that is
    its network, as one client has 2**64 addresses (RFC 6177). Returns "" if the request has none of
    the headers.
    """
    for name in names:
        if value := headers.get(name):
            source = value.rpartition(",")[2].strip()[:_MAX_SOURCE_CHARS]
            return _network(source) if ":" in source else source
    return ""


def _network(source: str) -> str:
    """Return the network of 64 bits that an address of IPv6 is in; any other text as it is."""
    # Asked of all streams when memory is short: the ipaddress module would take 13 us for each.
    try:
        packed = inet_pton(AF_INET6, source.partition("%")[0])
    except (OSError, ValueError):
        return source
    if packed.startswith(_MAPPED):
        return inet_ntop(AF_INET, packed[len(_MAPPED) :])
    return inet_ntop(AF_INET6, packed[:8] + bytes(8)) + "/64"
