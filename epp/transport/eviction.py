"""Chooses the connection to close when a port is full and another client connects.

A full port that refuses newcomers can be held by anybody with idle connections; the gateway's next
connection and the kubelet's probe would be turned away. So the newcomer is let in and the idlest
connection without a stream is closed. Unfinished connections (no TLS, no preface yet) are the
idlest, but they are spared for a moment: otherwise a client that opens connections fast enough
would push out every other one in the middle of its handshake.
"""

import asyncio
from collections.abc import Set

from epp.sockets import Acceptor
from epp.transport.protocol import ConnectionProtocol

HANDSHAKE_SECONDS = 1.0
"""An unfinished connection is spared for so long, while few are unfinished."""
FEW_UNFINISHED = 1 / 4
"""Fraction of a port's connections below which few are unfinished."""
EXHAUSTED_SECONDS = 0.1
"""How long one is spared when the process has no descriptor left."""
LEAVING_SECONDS = 3.0
"""Time for the client of an unused connection to leave after GOAWAY."""
_SECONDS_BETWEEN_LOOKS = 0.1
"""A look at 1,000 connections takes a millisecond."""
LEAVING = 1 / 16
"""Connections that may be leaving, as a fraction of the port's limit and on top of it."""


def descriptors_for(connections: int) -> int:
    """Return how many descriptors a port takes that may have so many connections."""
    return connections + _max_leaving(connections)


def connections_for(descriptors: int) -> int:
    """Return how many connections a port may have with so many descriptors."""
    connections = int((descriptors + 1) / (1 + LEAVING))
    if descriptors_for(connections) > descriptors:
        connections -= 1
    return max(1, connections)


class Evictor:
    """Keeps the connections of one port below a limit.

    A newcomer costs a few microseconds, however many connections there are, so that a client that
    opens thousands does not keep the loop busy with choosing.

    Args:
        connections: Those open now.
        acceptor: Has those that are not with their protocol yet.
        limit: Most connections, not counting those that are leaving.
        evicts_streams: If every connection has a stream, the oldest one goes; otherwise the
            newcomer is refused.
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
        """Connections closed for another one."""
        self._connections = connections
        self._acceptor = acceptor
        self._limit = limit
        self._evicts_streams = evicts_streams
        self._unfinished: dict[ConnectionProtocol, None] = {}
        """Those whose preface has not come, oldest first."""
        self._leaving: dict[ConnectionProtocol, float] = {}
        """Those that have been told to leave, in that order, and when."""
        self._aborted: set[ConnectionProtocol] = set()
        """Those that are closed in the loop's next turn."""
        self._idlest: list[tuple[int, float, ConnectionProtocol]] = []
        """Those without streams at the last look, the idlest last: for how long they had had none,
        and the negative time of their arrival."""
        self._next_look = float("-inf")

    # what connections tell

    def opened(self, protocol: ConnectionProtocol) -> None:
        """It is connected, after the TLS handshake."""
        self._unfinished[protocol] = None

    def established(self, protocol: ConnectionProtocol) -> None:
        """Its preface has come."""
        self._unfinished.pop(protocol, None)

    def closed(self, protocol: ConnectionProtocol) -> None:
        """It is gone."""
        self._unfinished.pop(protocol, None)
        self._leaving.pop(protocol, None)
        self._aborted.discard(protocol)

    # who may come, and who goes

    def admit(self) -> bool:
        """Return whether there is room for one more connection; make some if there is none."""
        count = len(self._connections) + len(self._acceptor.pending) - len(self._aborted)
        if count < self._limit:
            return True
        count -= sum(not each.connection.streams for each in self._leaving)
        return count < self._limit or self._evict(self._evicts_streams)

    def free(self) -> None:
        """Close what is unfinished, or else the idlest, as the process has no descriptor left."""
        start = asyncio.get_running_loop().time() - EXHAUSTED_SECONDS
        before = self.evicted
        while (oldest := self._oldest_unfinished()) is not None and oldest[0] <= start:
            self._close_unfinished(oldest[1])
        if self.evicted == before:
            self._evict(evicts_streams=False)

    def tick(self) -> None:
        """Close connections whose clients do not leave."""
        now = asyncio.get_running_loop().time()
        for each, since in list(self._leaving.items()):
            if now - since >= LEAVING_SECONDS and not each.connection.streams:
                self._abort(each)

    def _evict(self, evicts_streams: bool) -> bool:
        """Close a connection; return whether there was one to be closed."""
        oldest = self._oldest_unfinished()
        if oldest is not None:
            count = len(self._unfinished) + len(self._acceptor.pending)
            age = asyncio.get_running_loop().time() - oldest[0]
            if age >= HANDSHAKE_SECONDS or count > self._limit * FEW_UNFINISHED:
                self._close_unfinished(oldest[1])
                return True
        if (unused := self._longest_unused()) is not None:
            self._ask_to_leave(unused)
        elif oldest is not None:
            self._close_unfinished(oldest[1])
        elif evicts_streams and (others := set(self._connections) - self._aborted):
            self.evicted += 1
            self._abort(min(others, key=lambda each: each.accepted_at))
        else:
            return False
        return True

    def _oldest_unfinished(self) -> tuple[float, ConnectionProtocol | None] | None:
        """Return when it came, and the connection; None for that if it has no protocol yet."""
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
        if now < self._next_look:
            return None
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
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
            or protocol in self._leaving
            or protocol in self._aborted
        )

    def _ask_to_leave(self, protocol: ConnectionProtocol) -> None:
        self.evicted += 1
        if protocol.is_ending:
            self._abort(protocol)
            return
        self._leaving[protocol] = asyncio.get_running_loop().time()
        protocol.begin_shutdown()
        if len(self._leaving) > _max_leaving(self._limit):
            for each in self._leaving:
                if not each.connection.streams:
                    self._abort(each)
                    return

    def _abort(self, protocol: ConnectionProtocol) -> None:
        self.closed(protocol)
        if protocol in self._connections:
            self._aborted.add(protocol)
        protocol.abort()


def _max_leaving(connections: int) -> int:
    return max(1, int(connections * LEAVING))
