"""Ports for servers that a test or a tool starts, stops and starts again.

Nobody else takes the port of a server that is not started yet, or is stopped for a while: the ports
are below Linux's ephemeral ports, which connections get, and servers that ask for any port. And
each process that asks here has blocks of ports of its own.
"""

import socket
from collections import deque
from threading import Lock
from typing import Final

PORTS: Final = range(20_000, 32_768)
"""Below Linux's ephemeral ports."""
BLOCK_PORTS: Final = 128
"""Ports of a block. The first one is bound as long as the process runs that owns the block."""


class NoFreePortError(RuntimeError):
    """Too few ports are free."""


class PortBlocks:
    """The blocks of ports that this process owns: none at first, and one more when it needs it.

    Args:
        ports: The ports of all blocks, whoever owns them.
    """

    def __init__(self, ports: range = PORTS) -> None:
        self._all = ports
        self._lock = Lock()
        self._own: deque[int] = deque()
        """The ports of the own blocks, those that were returned last at the end."""

    def take(self, count: int) -> list[int]:
        """Return different ports that are not in use; a port comes again after all others.

        Raises:
            NoFreePortError: There are fewer.
        """
        found: list[int] = []
        with self._lock:
            tried = 0
            while len(found) < count:
                if tried == len(self._own):
                    self._own.extendleft(self._another_block(count))
                port = self._own.popleft()
                self._own.append(port)
                tried += 1
                if (bound := _bind(port)) is not None:
                    bound.close()
                    found.append(port)
        return found

    def _another_block(self, wanted: int) -> range:
        for first in self._all[::BLOCK_PORTS]:
            if (bound := _bind(first)) is not None:
                bound.detach()  # it stays open until this process ends
                return range(first + 1, min(first + BLOCK_PORTS, self._all.stop))
        first, last = self._all[0], self._all[-1]
        raise NoFreePortError(f"fewer than {wanted} ports from {first} to {last} are free")


def _bind(port: int) -> socket.socket | None:
    """Return a socket that is bound to a port of 127.0.0.1; None if the port is in use."""
    made = socket.socket()
    try:
        made.bind(("127.0.0.1", port))
    except OSError:
        made.close()
        return None
    return made


_blocks: Final = PortBlocks()


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 that are not in use, for this process alone.

    Raises:
        NoFreePortError: There are fewer.
    """
    return _blocks.take(count)
