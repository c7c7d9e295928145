"""Ports that are reserved for processes that share them."""

import errno
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from epp.sockets import bind_shared, listen_on


@pytest.fixture
def _without_ipv6(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without IPv6, where the name ``localhost`` has an IPv6 address all the same."""
    make = socket.socket
    stream = socket.SOCK_STREAM

    def refuse_ipv6(family: int = -1, *others: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return make(family, *others)

    found = [
        (socket.AF_INET6, stream, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, stream, 6, "", ("127.0.0.1", 0)),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse_ipv6)
        patch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        yield


@pytest.mark.usefixtures("_without_ipv6")
def test_addresses_of_a_kind_that_the_machine_lacks_are_left_out() -> None:
    (bound,) = bind_shared("localhost", 0)
    with closing(bound):
        host, port = bound.getsockname()
        assert host == "127.0.0.1"
        (listening,) = listen_on(
            [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))], reuse_port=True
        )
        listening.close()


def test_a_reserved_port_gets_no_connections_itself() -> None:
    (bound,) = bind_shared("127.0.0.1", 0)
    with closing(bound), pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname())


def test_a_port_on_which_another_program_listens_is_in_use() -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    (other,) = listen_on([address], reuse_port=True)
    with closing(other), pytest.raises(OSError, match="Address already in use"):
        bind_shared("127.0.0.1", other.getsockname()[1])
