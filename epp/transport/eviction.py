"""Chooses the connection to close when a port is full and another client connects.

If a full port refused new connections, any client could block it with idle ones, and the gateway's
next connection and the kubelet's probe would fail. So the new one is admitted, and the idlest
connection without a stream is closed. Unfinished connections (TLS handshake or preface incomplete)
are the idlest, but they are spared for a moment: otherwise a client that opens connections fast
enough would evict all others during their handshakes.
"""

import asyncio
from collections.abc import Set

from epp.sockets import Acceptor
from epp.transport.protocol import ConnectionProtocol

HANDSHAKE_SECONDS = 1.0
"""How long an unfinished connection is spared, while few are unfinished."""
FEW_UNFINISHED = 1 / 4
"""Fraction of a port's connections below which few are unfinished."""
EXHAUSTED_SECONDS = 0.1
"""How long an unfinished connection is spared when the process has no descriptor left."""
DRAIN_SECONDS = 3.0
"""How long the client of an unused connection may take to close it after GOAWAY."""
_SECONDS_BETWEEN_SCANS = 0.1
"""Minimum interval of scans for unused connections; 1,000 connections take a millisecond."""
DRAINING_SHARE = 1 / 16
"""Connections that may be draining, in addition to the port's limit and as a fraction of it."""


def descriptors_for(connections: int) -> int:
    """Return the number of descriptors that a port with this connection limit needs."""
    return connections + _max_draining(connections)


def connections_for(descriptors: int) -> int:
    """Return the connection limit of a port with this number of descriptors."""
    connections = int((descriptors + 1) / (1 + DRAINING_SHARE))
    if descriptors_for(connections) > descriptors:
        connections -= 1
    return max(1, connections)


class Evictor:
    """Keeps the connections of one port within a limit.

    Admitting a connection takes a few microseconds, however many there are, so that a client cannot
    keep the event loop busy by opening thousands.

    Args:
        connections: The open connections.
        acceptor: Has the connections without a protocol yet.
        limit: Maximum number of connections, not counting draining ones.
        evicts_streams: If every connection has a stream, evict the oldest one; otherwise refuse
            the new one.
    """

    def __init__(
        self,
        connections: Set[ConnectionProtocol],
        acceptor: Acceptor,
        *,
        limit: int,
        evicts_streams: bool,
    ) -> None:
        self.evicted = 0
        """Connections closed to admit another."""
        self._connections = connections
        self._acceptor = acceptor
        self._limit = limit
        self._evicts_streams = evicts_streams
        self._unfinished: dict[ConnectionProtocol, None] = {}
        """Connections without a preface yet, oldest first."""
        self._draining: dict[ConnectionProtocol, float] = {}
        """Unused connections that were sent GOAWAY, oldest first, and when that was."""
        self._aborted: set[ConnectionProtocol] = set()
        """Connections that the event loop closes in its next iteration."""
        self._idlest: list[tuple[int, float, ConnectionProtocol]] = []
        """Connections without streams at the last scan, the idlest last: seconds without streams,
        negative time of acceptance, connection."""
        self._next_scan = float("-inf")

    # --- events of connections ------------------------------------------------------------------

    def opened(self, protocol: ConnectionProtocol) -> None:
        """Add a connection, after the TLS handshake."""
        self._unfinished[protocol] = None

    def established(self, protocol: ConnectionProtocol) -> None:
        """Mark a connection as finished: its preface has arrived."""
        self._unfinished.pop(protocol, None)

    def closed(self, protocol: ConnectionProtocol) -> None:
        """Remove a connection."""
        self._unfinished.pop(protocol, None)
        self._draining.pop(protocol, None)
        self._aborted.discard(protocol)

    # --- admission and eviction -----------------------------------------------------------------

    def admit(self) -> bool:
        """Return whether one more connection is admitted; evict another one if the port is full."""
        count = len(self._connections) + len(self._acceptor.pending) - len(self._aborted)
        if count < self._limit:
            return True
        count -= sum(not each.connection.streams for each in self._draining)
        return count < self._limit or self._evict(self._evicts_streams)

    def free_descriptors(self) -> None:
        """Close unfinished connections or the idlest one: the process has no descriptor left."""
        start = asyncio.get_running_loop().time() - EXHAUSTED_SECONDS
        before = self.evicted
        while (oldest := self._oldest_unfinished()) is not None and oldest[0] <= start:
            self._close_unfinished(oldest[1])
        if self.evicted == before:
            self._evict(evicts_streams=False)

    def tick(self) -> None:
        """Close draining connections whose clients have not closed them in time."""
        now = asyncio.get_running_loop().time()
        for each, since in list(self._draining.items()):
            if now - since >= DRAIN_SECONDS and not each.connection.streams:
                self._abort(each)

    def _evict(self, evicts_streams: bool) -> bool:
        """Close a connection; return whether one could be closed."""
        oldest = self._oldest_unfinished()
        if oldest is not None:
            count = len(self._unfinished) + len(self._acceptor.pending)
            age = asyncio.get_running_loop().time() - oldest[0]
            if age >= HANDSHAKE_SECONDS or count > self._limit * FEW_UNFINISHED:
                self._close_unfinished(oldest[1])
                return True
        if (unused := self._longest_unused()) is not None:
            self._drain(unused)
        elif oldest is not None:
            self._close_unfinished(oldest[1])
        elif evicts_streams and (others := set(self._connections) - self._aborted):
            self.evicted += 1
            self._abort(min(others, key=lambda each: each.accepted_at))
        else:
            return False
        return True

    def _oldest_unfinished(self) -> tuple[float, ConnectionProtocol | None] | None:
        """Return its time of acceptance, and the connection or None if it has no protocol yet."""
        pending = next(iter(self._acceptor.pending.values()), None)
        first = next(iter(self._unfinished), None)
        if first is not None and (pending is None or first.accepted_at <= pending):
            return first.accepted_at, first
        return None if pending is None else (pending, None)

    def _close_unfinished(self, protocol: ConnectionProtocol | None) -> None:
        self.evicted += 1
        if protocol is None:
            self._acceptor.drop_oldest()
        else:
            self._abort(protocol)

    def _longest_unused(self) -> ConnectionProtocol | None:
        if (found := self._next_idlest()) is not None:
            return found
        now = asyncio.get_running_loop().time()
        if now < self._next_scan:
            return None
        self._next_scan = now + _SECONDS_BETWEEN_SCANS
        self._idlest = [
            (each.unused_seconds, -each.accepted_at, each)
            for each in self._connections
            if self._is_unused(each)
        ]
        self._idlest.sort(key=lambda each: each[:2])
        return self._next_idlest()

    def _next_idlest(self) -> ConnectionProtocol | None:
        while self._idlest:
            seconds, _, protocol = self._idlest.pop()
            is_open = protocol in self._connections
            if is_open and self._is_unused(protocol) and protocol.unused_seconds >= seconds:
                return protocol
        return None

    def _is_unused(self, protocol: ConnectionProtocol) -> bool:
        return not (
            protocol.connection.streams
            or protocol in self._unfinished
            or protocol in self._draining
            or protocol in self._aborted
        )

    def _drain(self, protocol: ConnectionProtocol) -> None:
        self.evicted += 1
        if protocol.is_ending:
            self._abort(protocol)
            return
        self._draining[protocol] = asyncio.get_running_loop().time()
        protocol.begin_shutdown()
        if len(self._draining) > _max_draining(self._limit):
            for each in self._draining:
                if not each.connection.streams:
                    self._abort(each)
                    return

    def _abort(self, protocol: ConnectionProtocol) -> None:
        self.closed(protocol)
        if protocol in self._connections:
            self._aborted.add(protocol)
        protocol.abort()


def _max_draining(connections: int) -> int:
    return max(1, int(connections * DRAINING_SHARE))
