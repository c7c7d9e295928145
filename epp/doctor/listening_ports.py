"""Tests whether the ports on which an endpoint picker will listen are free."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PortState:
    """A port of this machine."""

    option: str
    """The option that sets the port."""
    port: int
    fault: str
    """Why a process cannot listen on the port; "" if it can."""


def try_ports(host: str, ports: Mapping[str, int]) -> Iterator[PortState]:
    """Listen on each port for a moment, and yield the results.

    Args:
        host: The address.
        ports: Ports by option; 0, which means any port, is not tried.
    """
    for option, port in ports.items():
        if port:
            yield PortState(option, port, _fault(host, port))


def _fault(host: str, port: int) -> str:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""
