"""Chooses which connection goes when a port is full and another client comes.

A full port that refuses newcomers can be held by anybody with idle connections; the gateway's next
connection and the kubelet's probe would be turned away. So the newcomer is let in and the idlest
connection without a stream goes. Unfinished ones (no TLS, no preface yet) are idlest of all, but
for a moment: with that, a client who opens connections fast enough would push out every other one
in the middle of its handshake.
"""

import asyncio
from collections.abc import Callable, Set

from epp.sockets import Acceptor
from epp.transport.protocol import ConnectionProtocol

HANDSHAKE_SECONDS = 1.0
"""An unfinished connection is spared for so long, while few are unfinished."""
FEW_UNFINISHED = 1 / 4
"""Of the connections that a port may have."""
EXHAUSTED_SECONDS = 0.1
"""The same when the process has no descriptor left: then each one counts."""
LEAVING_SECONDS = 3.0
"""For the client of an unused connection to leave once it has been told to."""
LEAVING = 1 / 16
"""Of the connections that a port may have, so many more may be about to leave."""


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

    Args:
        connections: Those open now.
        acceptor: Has those that are not with their protocol yet.
        limit: How many there may be in all, those that are leaving apart.
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
        self._leaving: dict[ConnectionProtocol, float] = {}

    def admit(self) -> bool:
        """Return whether there is room for one more connection; make some if there is none."""
        count = len(self._connections) + len(self._acceptor.pending)
        if count < self._limit:
            return True
        leaving = sum(not each.connection.streams for each in self._leaving)
        if count - leaving >= self._limit:
            evict = self._victim()
            if evict is None:
                return False
            self.evicted += 1
            evict()
        return True

    def forget(self, protocol: ConnectionProtocol) -> None:
        """It is closed."""
        self._leaving.pop(protocol, None)

    def tick(self) -> None:
        """Close connections whose clients do not leave."""
        now = asyncio.get_running_loop().time()
        for each, since in list(self._leaving.items()):
            if now - since >= LEAVING_SECONDS and not each.connection.streams:
                each.abort()

    def free(self) -> None:
        """Close what is unfinished for a while, or else the idlest: descriptors have run out."""
        start = asyncio.get_running_loop().time() - EXHAUSTED_SECONDS
        pending = self._acceptor.pending
        before = self.evicted
        while pending and next(iter(pending.values())) <= start:
            self.evicted += 1
            self._acceptor.drop_oldest()
        for each in set(self._connections) - self._leaving.keys():
            if not each.connection.streams and each.is_unfinished and each.accepted_at <= start:
                self.evicted += 1
                self._abort(each)
        if self.evicted == before and (evict := self._idlest()) is not None:
            self.evicted += 1
            evict()

    def _victim(self) -> Callable[[], None] | None:
        """Return what closes the connection that goes; None if none can go."""
        idlest = self._idlest()
        busy = set(self._connections) - self._leaving.keys()
        if idlest is None and busy and self._evicts_streams:
            oldest = min(busy, key=lambda each: each.accepted_at)
            return lambda: self._abort(oldest)
        return idlest

    def _idlest(self) -> Callable[[], None] | None:
        """Return what closes the idlest connection without streams; None if all have one."""
        pending = self._acceptor.pending
        unfinished: dict[ConnectionProtocol | None, float] = {}
        if pending:
            unfinished[None] = next(iter(pending.values()))
        count = len(pending)
        unused: list[ConnectionProtocol] = []
        for each in self._connections:
            if each.connection.streams or each in self._leaving:
                continue
            if each.is_unfinished:
                unfinished[each] = each.accepted_at
                count += 1
            else:
                unused.append(each)
        if unfinished:
            first = min(unfinished, key=unfinished.__getitem__)
            age = asyncio.get_running_loop().time() - unfinished[first]
            if age >= HANDSHAKE_SECONDS or count > self._limit * FEW_UNFINISHED or not unused:
                return self._acceptor.drop_oldest if first is None else lambda: self._abort(first)
        if unused:
            idlest = min(unused, key=lambda each: (-each.unused_seconds, each.accepted_at))
            return lambda: self._ask_to_leave(idlest)
        return None

    def _ask_to_leave(self, protocol: ConnectionProtocol) -> None:
        self._leaving[protocol] = asyncio.get_running_loop().time()
        protocol.begin_shutdown()
        if len(self._leaving) > _max_leaving(self._limit):
            for each in self._leaving:
                if not each.connection.streams:
                    each.abort()
                    return

    def _abort(self, protocol: ConnectionProtocol) -> None:
        # It is open until the loop's next turn: it shall not be chosen again.
        self._leaving[protocol] = asyncio.get_running_loop().time()
        protocol.abort()


def _max_leaving(connections: int) -> int:
    return max(1, int(connections * LEAVING))
