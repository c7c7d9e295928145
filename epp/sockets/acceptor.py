"""Accepts connections, like ``create_server``, but waits when descriptors run out.

When a process has no descriptor left (EMFILE), asyncio logs one traceback per backlog slot each
second (7,000 in 3 s). uvloop accepts and closes every pending connection, including the gateway's;
if another thread has taken the descriptor that libuv reserves for that, it spins (92 % CPU,
measured). Here, connections wait in the kernel's backlog until a descriptor is free.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

ACCEPTS_PER_TURN = 16
"""Connections of one listening socket to accept before the loop handles other events."""

_PAUSE_SECONDS = 0.1
_SECONDS_BETWEEN_LOGS = 60.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_OF_ONE_CONNECTION = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
        errno.EPERM,
    }
)
"""accept(2): errors of the next connection, not of the socket; EPERM is a firewall's."""

_log = structlog.get_logger(__name__)


def _do_nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortStatistics:
    """Connections of one port: current ones, and counts since the start."""

    connections: int
    limit: int
    evicted: int
    """Connections closed to admit a new one on a full port."""
    refused: int
    """New connections refused, because none could be evicted for them."""
    timed_out: int
    """Connections closed because the client took too long."""
    accept_pauses: int
    """How often accepting paused because the process had no descriptor left."""


class Acceptor:
    """Accepts connections on listening sockets and creates a protocol for each.

    Args:
        name: Name of the port, for the log.
        make: Creates the protocol of a connection.
        admit: Called for each connection; if it returns False, the connection is closed.
        tls: TLS context; None for plaintext.
        handshake_seconds: Time limit of a TLS handshake.
        exhausted: Called when the process runs out of descriptors; may close connections.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], asyncio.Protocol],
        *,
        admit: Callable[[], bool],
        tls: ssl.SSLContext | None = None,
        handshake_seconds: float | None = None,
        exhausted: Callable[[], None] = _do_nothing,
    ) -> None:
        self.pauses = 0
        """How often accepting paused because there was no descriptor."""
        self.pending: dict[socket.socket, float] = {}
        """Accepted connections without a protocol yet (TLS handshake in progress), oldest first;
        the value is the loop time at which they were accepted."""
        self._name = name
        self._make = make
        self._admit = admit
        self._tls = tls
        self._handshake_seconds = None if tls is None else handshake_seconds
        self._exhausted = exhausted
        self._listening: list[socket.socket] = []
        self._resuming: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_log = float("-inf")

    def start(self, listening: Iterable[socket.socket]) -> None:
        """Start to accept; :meth:`close` closes the listening sockets."""
        self._listening = list(listening)
        for each in self._listening:
            each.setblocking(False)
            self._resume(each)

    def close(self) -> None:
        """Stop listening, and close pending connections."""
        loop = asyncio.get_running_loop()
        for timer in self._resuming.values():
            timer.cancel()
        for each in self._listening:
            loop.remove_reader(each)
            each.close()
        self._listening.clear()
        while self.pending:
            self.drop_oldest()

    async def settled(self) -> None:
        """Wait until no connection is pending."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def drop_oldest(self) -> None:
        """Close the connection that has been pending longest."""
        oldest = next(iter(self.pending))
        del self.pending[oldest]
        # The transport owns the socket by now: it sees EOF and closes it.
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)

    def _resume(self, listening: socket.socket) -> None:
        self._resuming.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OF_ONE_CONNECTION:
                    continue
                self._pause(listening, error)
                return
            connection.setblocking(False)
            self._take(connection)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        # The socket stays readable while connections are in the backlog: a reader would spin.
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._resuming[listening] = loop.call_later(_PAUSE_SECONDS, self._resume, listening)
        self.pauses += 1
        if loop.time() >= self._next_log:
            self._next_log = loop.time() + _SECONDS_BETWEEN_LOGS
            _log.error(
                "connections could not be accepted, they wait",
                port=self._name,
                reason=error.strerror,
                pauses=self.pauses,
            )
        if error.errno in _EXHAUSTED:
            self._exhausted()

    def _take(self, connection: socket.socket) -> None:
        is_admitted = False
        try:
            is_admitted = self._admit()
        finally:
            if not is_admitted:
                connection.close()
        if not is_admitted:
            return
        loop = asyncio.get_running_loop()
        self.pending[connection] = loop.time()
        task = loop.create_task(self._connect(connection), name=f"accept-{self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_seconds,
            )
        except OSError:
            pass  # the peer has closed, or TLS failed: the transport has closed the socket
        except Exception:
            connection.close()
            _log.exception("connection could not be served", port=self._name)
        finally:
            self.pending.pop(connection, None)
