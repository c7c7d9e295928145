"""Messages between replicas over Redis or Valkey, by publish and subscribe.

All replicas of a group share one channel, and each has another for messages to it alone. Nothing is
stored, so there are no keys to expire, no memory limit or eviction policy matters, and a Redis that
starts empty after a failure loses nothing. Streams, which keep messages, are not used: a number of
requests in flight is out of date before it could be read again, and a replica that joins needs the
present state of the others, not their past messages. It asks for that state, and gets it on its own
channel.

A replica receives its own messages, too. If it receives none for a while, the connection is dead,
even if TCP has not noticed yet, and is replaced.
"""

import asyncio
import random
from collections import deque
from contextlib import suppress
from typing import Final

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from epp.replication.carrier import Carrier, Inbox
from epp.replication.errors import ReplicaStateError
from epp.replication.reach import ReachLog
from epp.replication.redis_connection import connection_pool
from epp.replication.settings import RedisAddress, ReplicaSettings

MAX_QUEUED: Final = 256
"""Messages that may wait to be sent: 5 s of one every 20 ms."""
MAX_QUEUED_BYTES: Final = 8 << 20
CONNECT_SECONDS: Final = 2.0
"""Time limit for connecting, and for each response of Redis."""
SILENCE_SECONDS: Final = 3.0
"""Time without any message, even an own one, after which the connection counts as dead; at least
half a lease."""
_FIRST_WAIT_SECONDS: Final = 0.1
_MOST_WAIT_SECONDS: Final = 2.0
_LAST_SECONDS: Final = 0.5
"""Time limit for sending the last messages."""
_FAULTS: Final = (RedisError, OSError, ReplicaStateError)


class RedisCarrier(Carrier):
    """Carries messages over Redis.

    Args:
        address: The server.
        settings: Password, certificates and lease.
        name: Name of this replica.
        group: Replicas with the same group share their state.
        rng: Source of the jitter.
    """

    def __init__(
        self,
        address: RedisAddress,
        settings: ReplicaSettings,
        *,
        name: str,
        group: str,
        rng: random.Random,
    ) -> None:
        self._address = address
        self._settings = settings
        self._all = f"epp:{address.database}:{group}"
        self._own = self._channel(name)
        self._rng = rng
        self._silence_seconds = max(SILENCE_SECONDS, settings.replica_lease_seconds / 2)
        self._queue: deque[tuple[str, bytes]] = deque()
        self._queued_bytes = 0
        self._has_queued = asyncio.Event()
        self._is_connected = False
        self._has_sent = False
        """Whether Redis has accepted messages since the last connect."""
        self._has_exchanged = False
        """Whether, besides, one has been received. A connection may lack either right."""
        self._reach = ReachLog()

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    def send(self, message: bytes, recipient: str = "") -> bool:
        is_full = (
            len(self._queue) >= MAX_QUEUED or self._queued_bytes + len(message) > MAX_QUEUED_BYTES
        )
        if is_full or not self._is_connected:
            return False
        self._queue.append((self._channel(recipient) if recipient else self._all, message))
        self._queued_bytes += len(message)
        self._has_queued.set()
        return True

    async def run(self, inbox: Inbox) -> None:
        wait = _FIRST_WAIT_SECONDS
        while True:
            try:
                await self._serve(inbox)
            except* _FAULTS as faults:
                fault: BaseException = faults
                while isinstance(fault, BaseExceptionGroup):
                    fault = fault.exceptions[0]
                if self._has_exchanged:
                    wait = _FIRST_WAIT_SECONDS
                self._note_loss(fault)
            # With jitter, so that not all replicas connect at the same moment.
            await asyncio.sleep(wait * self._rng.uniform(0.5, 1.0))
            wait = min(2 * wait, _MOST_WAIT_SECONDS)

    def _note_loss(self, fault: BaseException) -> None:
        self._is_connected = self._has_sent = self._has_exchanged = False
        self._reach.lost(
            str(fault) or type(fault).__name__,
            host=self._address.host,
            port=self._address.port,
        )

    async def _serve(self, inbox: Inbox) -> None:
        """Connect, and carry messages until that fails.

        Raises:
            OSError: The server cannot be reached, or the password file cannot be read.
            ReplicaStateError: The password file is not UTF-8, or a certificate cannot be read.
            RedisError: The server refuses the connection or a command, or does not respond.
        """
        self._queue.clear()
        self._queued_bytes = 0
        pool = await asyncio.to_thread(
            connection_pool, self._address, self._settings, timeout_seconds=CONNECT_SECONDS
        )
        client = Redis.from_pool(pool)
        async with client, client.pubsub() as subscription:
            async with asyncio.timeout(2 * CONNECT_SECONDS):
                await subscription.subscribe(self._all, self._own)
                await client.ping()
            self._is_connected = True
            inbox.joined()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._publish(client), name="replica publisher")
                    tasks.create_task(self._listen(subscription, inbox), name="replica listener")
            except asyncio.CancelledError:
                with suppress(*_FAULTS):
                    async with asyncio.timeout(_LAST_SECONDS):
                        await self._publish_queued(client)
                raise

    async def _publish(self, client: Redis) -> None:
        while True:
            await self._has_queued.wait()
            await self._publish_queued(client)
            _end_if_cancelled()

    async def _publish_queued(self, client: Redis) -> None:
        self._has_queued.clear()
        if not self._queue:
            return
        async with client.pipeline(transaction=False) as pipeline:
            while self._queue:
                channel, message = self._queue.popleft()
                self._queued_bytes -= len(message)
                pipeline.publish(channel, message)
            # Raised here, because the pipeline would add the message to the text of the error.
            replies = await pipeline.execute(raise_on_error=False)
        if refusals := [each for each in replies if isinstance(each, RedisError)]:
            raise refusals[0]
        self._has_sent = True

    async def _listen(self, subscription: PubSub, inbox: Inbox) -> None:
        while True:
            got = await subscription.get_message(timeout=self._silence_seconds)
            _end_if_cancelled()
            if got is None:
                raise TimeoutError(f"no message came for {self._silence_seconds:g} s")
            if got["type"] == "message":
                self._note_exchange()
                inbox.received(got["data"])

    def _note_exchange(self) -> None:
        if self._has_exchanged or not self._has_sent:
            return
        self._has_exchanged = True
        self._reach.regained(host=self._address.host)

    def _channel(self, recipient: str) -> str:
        return f"{self._all}:to:{recipient}"


def _end_if_cancelled() -> None:
    """Raise CancelledError if this task was cancelled, which the client may have hidden.

    If it is cancelled while it sends commands, the client of Redis (8.1) returns, or raises another
    error. Call this only in tasks of a group: Python 3.11 leaves the parent task of a failed group
    marked as cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
