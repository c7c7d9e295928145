"""Elect one of several replicas as the leader, by a Lease that it renews.

The rules are those of client-go: whoever holds the Lease leads; the others take it once it has not
changed for the lease duration, each by its own monotonic clock, so wall clocks may be wrong. Every
write is a compare-and-swap on the resource version, so one of several candidates succeeds.

The holder leads for the renew deadline after it *sent* its last successful write, and the others
wait longer than that after they have *seen* it: no two replicas lead at the same time, whatever the
network and the API server do. There is one exception, a Lease that an administrator deletes: a
replica that starts before the holder has noticed leads at once.

Unlike client-go, a replica that could not renew in time goes on as a candidate instead of exiting.
"""

import asyncio
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from epp.kubernetes.api import ApiClient, ApiError, KubernetesApiError
from epp.kubernetes.lease import EVENTS, LEASES, Lease, leadership_event

_log = structlog.get_logger(__name__)

_RENEW_SECONDS: Final = 10.0
"""How long a leader leads after the last successful write; client-go's renew deadline."""
_RETRY_SECONDS: Final = 2.0
"""Longest time between two attempts, including the calls of the first one."""
_JITTER: Final = (0.6, 0.9)
"""Range of the fraction of this time to wait, so that a released Lease is taken within 2 s."""
_CALL_SECONDS: Final = 5.0
_TIMER_SECONDS: Final = 0.001
"""Extra wait after the end of a period, so that the clock has passed it."""

_CONFLICT: Final = 409
_NOT_FOUND: Final = 404


def make_identity() -> str:
    """Return an identity that no other process has, ``HOSTNAME_UUID``."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(slots=True, eq=False)
class ElectorStatus:
    """The state of an elector."""

    last_contact: float | None = None
    """When the Lease was last read or written, by the elector's clock."""
    fault: KubernetesApiError | None = None
    """Why the Lease cannot be read or written now."""


class Elector:
    """Takes part in the election of a leader while :meth:`run` runs.

    Args:
        client: The API server.
        namespace: Namespace of the Lease.
        name: Name of the Lease; it is created if it does not exist.
        identity: Name of this process in the Lease; no two processes may have the same.
        changed: Called after ``is_leader`` or ``leader`` has changed. It must not raise.
        clock: Monotonic clock in seconds.
        wall_clock: Seconds since 1970, for the times in the Lease, which only people read.
        sleep: Waits between two attempts.
        rng: Source of jitter.
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.identity = identity
        self.status = ElectorStatus()
        self._client = client
        self._namespace = namespace
        self._name = name
        self._changed = changed
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._leads = False
        self._leads_until = 0.0
        """When leading ends unless the Lease is renewed."""
        self._lease: Lease | None = None
        """The Lease as last seen; None if there is none."""
        self._holder = ""
        """The last holder seen, which may go on leading after the Lease was deleted."""
        self._expires = 0.0
        """When ``_holder`` has certainly stopped leading if the Lease does not change."""
        self._may_hold = False
        """Whether this process holds the Lease, or has sent a write of unknown outcome."""
        self._log = _log.bind(lease=f"{namespace}/{name}", identity=identity)

    @property
    def is_leader(self) -> bool:
        """Whether this process leads; False in time even if the event loop is blocked."""
        return self._leads and self._clock() < self._leads_until

    @property
    def leader(self) -> str:
        """Identity of the holder when the Lease was last seen; empty if there was none."""
        return "" if self._lease is None else self._lease.holder

    async def run(self) -> None:
        """Take part in the election until cancelled; then release the Lease."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    led = self._leads
                    await self._attempt()
                    if self._leads and not led:
                        tasks.create_task(self._announce(), name="leader-election-event")
                    await self._sleep(self._wait_seconds())
                    if self._leads and self._clock() >= self._leads_until:
                        self._leads = False
                        self._log.warning("leadership lost", reason="the Lease was not renewed")
                        self._changed()
        finally:
            if self._may_hold:
                await self._release()

    async def _attempt(self) -> None:
        """Renew the Lease, or take it if it is free."""
        try:
            await self._renew_or_take()
        except ApiError as error:
            # Another process was faster, or the Lease has been deleted since it was read.
            if error.status == _CONFLICT or (error.status, error.verb) == (_NOT_FOUND, "update"):
                self._note_success()
            else:
                self._note_fault(error)
        except KubernetesApiError as error:
            self._note_fault(error)
        else:
            self._note_success()

    async def _renew_or_take(self) -> None:
        if self._leads:
            try:
                await self._write()
            except ApiError as error:
                # Not necessarily by another candidate: somebody may have added a label.
                if error.status not in {_CONFLICT, _NOT_FOUND}:
                    raise
            else:
                return
        await self._read()
        if self._holder in {"", self.identity} or self._clock() >= self._expires:
            await self._write()

    def _wait_seconds(self) -> float:
        """Return the time until the next attempt, but wake up when leading or the Lease ends."""
        wait = _RETRY_SECONDS * self._rng.uniform(*_JITTER)
        rest = (self._leads_until if self._leads else self._expires) - self._clock()
        if self._leads or rest > 0:
            return min(wait, max(rest, 0.0) + _TIMER_SECONDS)
        return wait

    async def _write(self) -> None:
        """Write the Lease with this process as the holder, and lead if that succeeds."""
        leads_until = self._clock() + _RENEW_SECONDS
        before = self._lease or Lease({"name": self._name})
        lease = before.held_by(self.identity, self._now())
        self._may_hold = True
        if self._lease is None:
            written = await self._client.post(
                LEASES,
                lease,
                Lease,
                namespace=self._namespace,
                timeout_seconds=self._limit_seconds(),
            )
        else:
            written = await self._put(lease)
        self._observe(written, leads_until)

    async def _read(self) -> None:
        try:
            lease = await self._client.get(
                LEASES,
                Lease,
                namespace=self._namespace,
                name=self._name,
                timeout_seconds=self._limit_seconds(),
            )
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            self._observe(None)
        else:
            self._observe(lease)

    async def _put(self, lease: Lease) -> Lease:
        return await self._client.put(
            LEASES,
            lease,
            Lease,
            namespace=self._namespace,
            name=self._name,
            timeout_seconds=self._limit_seconds(),
        )

    def _limit_seconds(self) -> float:
        """Return the limit of a call: a leader must know in time that it cannot renew."""
        if not self._leads:
            return _CALL_SECONDS
        return min(_CALL_SECONDS, max(0.0, self._leads_until - self._clock()))

    def _observe(self, lease: Lease | None, leads_until: float | None = None) -> None:
        """Record the Lease that the server has.

        Args:
            lease: The Lease; None if there is none.
            leads_until: When leading ends, if this process has just written the Lease.
        """
        led, leader = self._leads, self.leader
        if lease is not None:
            if self._lease is None or lease.spec != self._lease.spec:
                self._expires = self._clock() + lease.seconds
            self._holder = lease.holder
        self._lease = lease
        self._may_hold = self.leader == self.identity
        if not self._may_hold:
            self._leads = False
        elif leads_until is not None and self._clock() < leads_until:
            self._leads, self._leads_until = True, leads_until
        if led and not self._leads:
            self._log.warning("leadership lost", reason="the Lease was taken or deleted")
        elif self._leads and not led:
            self._log.info("leadership acquired")
        elif self.leader != leader:
            self._log.info("leader changed", leader=self.leader)
        else:
            return
        self._changed()

    async def _release(self) -> None:
        """Stop leading, and free the Lease if this process holds it, so that no other need wait."""
        if self._leads:
            self._leads = False
            self._log.info("leadership given up")
            self._changed()
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                while self._may_hold:
                    await self._free()
        except (KubernetesApiError, TimeoutError) as error:
            self._log.warning("lease not released", error=str(error))

    async def _free(self) -> None:
        await self._read()
        if self._lease is None or not self._may_hold:
            return
        try:
            self._observe(await self._put(self._lease.released(self._now())))
        except ApiError as error:
            if error.status != _CONFLICT:
                raise

    async def _announce(self) -> None:
        """Create an Event for people who look at the Lease; a refusal is only logged."""
        if self._lease is None:
            return  # deleted meanwhile
        event = leadership_event(self._lease, self.identity, self._now(), self._rng)
        try:
            await self._client.post(
                EVENTS,
                event,
                dict[str, Any],
                namespace=self._namespace,
                timeout_seconds=_CALL_SECONDS,
            )
        except KubernetesApiError as error:
            self._log.debug("event not created", error=str(error))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall_clock(), UTC)

    def _note_success(self) -> None:
        self.status.last_contact = self._clock()
        if self.status.fault is not None:
            self.status.fault = None
            self._log.info("lease reached again")

    def _note_fault(self, error: KubernetesApiError) -> None:
        before, self.status.fault = self.status.fault, error
        if before is None or _kind(before) != _kind(error):
            self._log.warning("lease not reached", error=str(error))


def _kind(error: KubernetesApiError) -> object:
    return (error.status, error.verb) if isinstance(error, ApiError) else type(error)
