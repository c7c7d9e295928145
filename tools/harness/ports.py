"""Ports for servers that a test or a tool starts, stops and starts again."""

import random
import socket
from contextlib import ExitStack, suppress

PORTS = range(20_000, 32_768)
"""Below Linux's ephemeral ports: while a server is stopped, no connection takes its port."""


class NoFreePortError(RuntimeError):
    """Too few ports are free."""


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 that are not in use.

    Raises:
        NoFreePortError: There are fewer.
    """
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(PORTS, len(PORTS)):
            bound = stack.enter_context(socket.socket())
            with suppress(OSError):
                bound.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise NoFreePortError(f"fewer than {count} ports from {PORTS[0]} to {PORTS[-1]} are free")
