"""This process as one of several replicas: sends its state to the others, and receives theirs.

Every 20 ms it sends the changes, and every second all requests in flight, to make up for lost
messages. If nothing is urgent, as between workers whose plugins share only facts, it sends every
0.1 s. A replica that is silent for its lease counts as dead: its requests in flight are forgotten,
its facts stay. A replica that joins, or that was cut off, asks the others. All reply with their
requests in flight, and the one that has run the longest also with all facts, in parts.

The request path never waits for this. If the carrier is disconnected, each replica goes on with its
own state; the numbers of others are dropped when their leases end, and come back as totals.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
import structlog

from epp.replication.carrier import Carrier, Inbox
from epp.replication.fact_replies import FactReplies
from epp.replication.messages import (
    MAX_MESSAGE_BYTES,
    VERSION,
    Message,
    PoolState,
    encode,
    read_head,
    read_message,
)
from epp.replication.peers import Peer, Peers
from epp.replication.plugin_states import FACTS_SECONDS
from epp.replication.pool_share import PoolShare
from epp.replication.traffic import Dropped, PeerReading, Traffic

_log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 0.02
"""Time between two messages while there are urgent changes."""
WHOLE_SECONDS: Final = 1.0
"""Time between two messages with all requests in flight."""
HEARTBEATS: Final = 8
"""Minimum number of messages per lease, even without changes."""
_RESTART_SECONDS: Final = 1.0
"""Pause before a carrier that failed unexpectedly is restarted."""


class Replica(Inbox):
    """One of several replicas.

    Args:
        name: Its name, unique among the replicas; it should stay the same after a restart.
        carrier: Carries the messages.
        lease_seconds: Silence after which another replica counts as dead.
        clock: The clock of the endpoints' loads, monotonic seconds.
        incarnation: Larger than that of an earlier process of this name; None for the current time.
    """

    def __init__(
        self,
        name: str,
        carrier: Carrier,
        *,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        incarnation: int | None = None,
    ) -> None:
        self.name = name
        self.incarnation = time.time_ns() if incarnation is None else incarnation
        self.traffic = Traffic()
        """Counts of messages."""
        self.peers = Peers(name)
        """The other replicas."""
        self._carrier = carrier
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._pools: dict[str, PoolShare] = {}
        self._sequence = 0
        self._asks = True
        self._asked_at = float("-inf")
        self._whole_at = 0.0
        self._heartbeat_at = 0.0
        self._fact_replies = FactReplies(self._all_facts)

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent."""
        return self._carrier.is_connected

    def share(self, pool: str) -> PoolShare:
        """Begin to share the state of a pool."""
        share = self._pools[pool] = PoolShare(pool, self._end)
        return share

    def _end(self, share: PoolShare) -> None:
        if self._pools.get(share.pool) is share:  # otherwise it has been replaced
            del self._pools[share.pool]

    def readings(self) -> Mapping[str, PeerReading]:
        """Return the state of the other replicas by name; thread-safe."""
        now, pools = self._clock(), tuple(self._pools.values())
        return {
            peer.name: PeerReading(
                max(0.0, now - peer.heard_at), sum(each.in_flight_of(peer.name) for each in pools)
            )
            for peer in self.peers
        }

    async def run(self) -> None:
        """Exchange state until cancelled; then tell the others that this replica leaves."""
        async with asyncio.TaskGroup() as tasks:
            carrier = tasks.create_task(self._carry(), name="replica carrier")
            try:
                while True:
                    pause_seconds = self.tick()
                    await asyncio.sleep(pause_seconds)
            finally:
                self._send(leaves=True)
                carrier.cancel()

    async def _carry(self) -> None:
        while True:
            try:
                await self._carrier.run(self)
            except Exception:
                _log.exception("the exchange with other replicas failed, it is started again")
            await asyncio.sleep(_RESTART_SECONDS)

    # --- sending ----------------------------------------------------------------------------------

    def tick(self) -> float:
        """Send the changes; forget replicas that are silent.

        Returns:
            Seconds until the next call.
        """
        now = self._clock()
        for peer in self.peers.expired(now, self._lease_seconds):
            self._forget(peer, "it was silent for longer than its lease")
            # The others may have left it to this one to send the facts that were asked for.
            self._asks |= now - self._asked_at < 2 * self._lease_seconds
        if not self._carrier.is_connected:
            self._whole_at = now
            return TICK_SECONDS
        is_whole = now >= self._whole_at
        if is_whole:
            self._whole_at = now + WHOLE_SECONDS
        states = []
        for share in self._pools.values():
            if (state := share.changes(now, self.peers, is_whole=is_whole)) is not None:
                states.append(state)
            self._asks |= share.asks_for_facts()
        for state in states:
            self._send(state)
        if self._asks or (not states and now >= self._heartbeat_at):
            self._send(asks=self._asks)
            if self._asks:
                self._asks, self._asked_at = False, now
        if self._fact_replies:
            self._send_facts()
        if self._fact_replies or any(each.is_urgent(self.peers) for each in self._pools.values()):
            return TICK_SECONDS
        return min(FACTS_SECONDS, max(TICK_SECONDS, self._heartbeat_at - now))

    def _send(
        self, *states: PoolState, recipient: str = "", asks: bool = False, leaves: bool = False
    ) -> None:
        if not recipient:
            self._sequence += 1
            self._heartbeat_at = self._clock() + self._lease_seconds / HEARTBEATS
        message = encode(
            Message(
                VERSION,
                self.name,
                self.incarnation,
                recipient,
                0 if recipient else self._sequence,
                TICK_SECONDS / 2,
                asks,
                leaves,
                list(states),
            )
        )
        traffic = self.traffic
        if len(message) > MAX_MESSAGE_BYTES:
            traffic.dropped[Dropped.TOO_LONG] += 1
        elif self._carrier.send(message, recipient):
            traffic.sent += 1
            traffic.sent_bytes += len(message)
        else:
            traffic.dropped[Dropped.NOT_QUEUED] += 1

    def _send_facts(self) -> None:
        """Send one part of the facts to the first replica that waits for them."""
        asker = self._fact_replies.first
        if self.peers.get(asker) is None:
            self._fact_replies.end_first()
        elif (state := self._fact_replies.next_part()) is not None:
            self._send(state, recipient=asker)

    def _all_facts(self) -> Iterator[PoolState]:
        for share in tuple(self._pools.values()):
            yield from share.all_facts()

    def _replies_to(self, asker: Peer) -> bool:
        """Whether this replica has run longer than all others but ``asker``."""
        return all(
            (self.incarnation, self.name) < (each.incarnation, each.name)
            for each in self.peers
            if each is not asker
        )

    # --- hearing ----------------------------------------------------------------------------------

    def joined(self) -> None:
        self._asks = True
        self._whole_at = 0.0

    def left(self, replica: str) -> None:
        if (peer := self.peers.get(replica)) is not None:
            self._forget(peer, "its process has ended")

    def received(self, message: bytes) -> None:
        dropped = self._read(message)
        if dropped is not None:
            self.traffic.dropped[dropped] += 1

    def _read(self, data: bytes) -> Dropped | None:
        """Process a message; return why it was dropped, None if it was not."""
        if len(data) > MAX_MESSAGE_BYTES:
            return Dropped.TOO_LONG
        try:
            head = read_head(data)
            if head.sender == self.name and head.incarnation == self.incarnation:
                return None
            if head.recipient not in {"", self.name}:
                return None
            if (dropped := self.peers.why_ignored(head)) is not None:
                return dropped
            message = read_message(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return Dropped.MALFORMED
        self.traffic.received += 1
        self.traffic.received_bytes += len(data)
        return self._hear(message)

    def _hear(self, message: Message) -> Dropped | None:
        now = self._clock()
        peer = self.peers.get(message.sender)
        if peer is not None and message.incarnation > peer.incarnation:
            self._forget(peer, "it was started again")
            peer = None
        if message.leaves:
            if peer is not None:
                self._forget(peer, "it has stopped")
            return None
        if peer is None:
            peer = self.peers.add(message, now)
            _log.info("replica joined", replica=peer.name, incarnation=peer.incarnation)
        missed = 0
        if message.sequence:
            if message.sequence <= peer.sequence:
                return Dropped.OVERTAKEN
            missed = message.sequence - peer.sequence - 1
            peer.sequence = message.sequence
            self.traffic.dropped[Dropped.LOST] += missed
        peer.heard_at = now
        if message.asks:
            self._whole_at = 0.0
            if self._replies_to(peer):
                self._fact_replies.add(peer.name)
        age = message.age_seconds
        is_known = not missed and 0.0 <= age <= self._lease_seconds
        changed_at = now - age if is_known else None
        for state in message.pools:
            if (share := self._pools.get(state.pool)) is not None:
                share.apply(peer.name, state, changed_at)
        return None

    def _forget(self, peer: Peer, why: str) -> None:
        self.peers.remove(peer.name)
        for share in self._pools.values():
            share.forget(peer.name)
        _log.info("replica left", replica=peer.name, reason=why)
