"""Creates listening sockets."""

import errno
import os
import socket
from collections.abc import Iterable
from typing import Any

EVERY_ADDRESS = "::"
BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""

Address = tuple[int, int, int, str, Any]
"""A result of ``getaddrinfo``: family, kind, protocol, canonical name, address."""


def listen_on(addresses: Iterable[Address], *, reuse_port: bool = False) -> list[socket.socket]:
    """Return a listening socket for each address; ``::`` accepts IPv6 and IPv4.

    Args:
        addresses: Results of ``getaddrinfo`` for ``SOCK_STREAM``, or equivalents for a socket file,
            which must not exist.
        reuse_port: Set SO_REUSEPORT, so that other processes may share the port.

    Raises:
        OSError: An address is not local, or the port is in use.
    """
    listening: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in addresses:
            made = _created(family, kind, protocol)
            if made is None:
                continue
            listening.append(made)
            if family == socket.AF_UNIX:
                made.bind(address)
                made.listen(BACKLOG)
                continue
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
            # On Linux, accepted connections inherit it.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if family == socket.AF_INET6:
                is_both = address[0] == EVERY_ADDRESS
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_both)
            made.bind(address)
            made.listen(BACKLOG)
    except OSError:
        for each in listening:
            each.close()
        raise
    if not listening:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    return listening


def bind_shared(host: str, port: int) -> list[socket.socket]:
    """Return sockets that keep a port for processes that listen on it with ``reuse_port``.

    They do not listen, so they get no connections.

    Args:
        host: Name or address.
        port: 0 for any free one.

    Raises:
        OSError: An address is not local, or another program listens on the port.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # With SO_REUSEPORT, another program's sockets that set it would go unnoticed: try without.
    trial = listen_on(found)
    port = trial[0].getsockname()[1]
    for each in trial:
        each.close()
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in found:
            made = _created(family, kind, protocol)
            if made is None:
                continue
            bound.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                made.setsockopt(
                    socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != EVERY_ADDRESS
                )
            made.bind((address[0], port, *address[2:]))
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound


def _created(family: int, kind: int, protocol: int) -> socket.socket | None:
    """Return a socket; None for a name's IPv6 address on a machine without IPv6."""
    try:
        return socket.socket(family, kind, protocol)
    except OSError:
        return None
