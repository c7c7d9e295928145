"""Write the status of objects to the API server: seldom, slowly, and only if it differs.

Of several replicas that may write, each waits a random time after a change, and then writes only
what no other replica has written meanwhile. Every write is a compare-and-swap on the resource
version. Whatever else writes into a status (a replica of another version, another controller), each
status is written at most once in ten minutes, unless the wanted status has changed.

A write is a JSON merge patch. Server-side apply would preserve the conditions of others, too, but
only if the CRD declares the conditions as a map, and it would overwrite a version that has not been
seen.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import structlog

from epp.kubernetes.api import ApiClient, ApiError, KubernetesApiError, Resource
from epp.kubernetes.api.backoff import Backoff
from epp.kubernetes.conditions import Condition, ObjectStatus

_log = structlog.get_logger(__name__)

SPREAD_SECONDS: Final = (0.2, 2.0)
"""Range of the wait after a change; a watch shows the writes of other replicas in less."""
PACE_SECONDS: Final = 0.25
"""Mean time between two writes."""
_STANDBY_SECONDS: Final = 2.0
"""Mean time between two checks whether this replica may write now."""
_CONFLICT_SECONDS: Final = 2.0
"""Mean time before a write is repeated because its object has changed meanwhile."""
AGAIN_SECONDS: Final = 600.0
"""Time until the same status of an object, or a kind that may not be written, is tried again."""

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_TRANSIENT: Final = frozenset({401, 408, 429})
"""Refusals that are not about the object, like all statuses from 500 on."""

_Key = tuple[Resource, str]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The last write of a status."""

    wanted: tuple[int, tuple[Condition, ...]]
    until: float
    """When the same may be written again."""


class StatusWriter:
    """Writes the statuses of objects while :meth:`run` runs.

    Args:
        may_write: Whether this replica is the one that writes.
        clock: Monotonic seconds.
        wall_clock: Seconds since 1970, for the times in conditions.
        sleep: Waits between two writes.
        rng: Source of jitter and of the order.
    """

    def __init__(
        self,
        may_write: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._may_write = may_write
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._backoff = Backoff(self._rng)
        self._keys: dict[Hashable, set[_Key]] = {}
        """All objects by their source."""
        self._differing: dict[Hashable, list[ObjectStatus]] = {}
        """Objects whose status differs, by their source."""
        self._attempts: dict[_Key, _Attempt] = {}
        self._off_until: dict[Resource, float] = {}
        """Kinds whose status cannot be written."""
        self._logged: set[Resource] = set()
        """Kinds whose missing permission has been logged."""
        self._is_failing = False
        self._news = asyncio.Event()

    def submit(self, source: Hashable, statuses: Iterable[ObjectStatus]) -> None:
        """Accept the statuses of objects; those that differ are written later.

        Args:
            source: The owner of the objects, such as a pool.
            statuses: All statuses of the source; they replace earlier ones.
        """
        differing, keys = [], set()
        for each in statuses:
            keys.add(each.key)
            if not each.is_current:
                differing.append(each)
        for gone in self._keys.pop(source, keys) - keys:
            self._attempts.pop(gone, None)
        self._differing.pop(source, None)
        if keys:
            self._keys[source] = keys
        if differing:
            self._differing[source] = differing
            self._news.set()

    async def run(self, client: ApiClient) -> None:
        """Write until cancelled."""
        while True:
            self._news.clear()
            due = self._due()
            if not due:
                await self._until_something_is_due()
                await self._sleep(self._rng.uniform(*SPREAD_SECONDS))
            elif not self._may_write():
                await self._sleep(self._around(_STANDBY_SECONDS))
            else:
                # At random: replicas that begin together do not meet at each object.
                await self._sleep(await self._write(client, self._rng.choice(due)))

    def _due(self) -> list[ObjectStatus]:
        now = self._clock()
        return [each for each in self._all() if self._due_at(each) <= now]

    def _all(self) -> Iterator[ObjectStatus]:
        """Return the statuses that differ."""
        return chain.from_iterable(self._differing.values())

    def _due_at(self, status: ObjectStatus) -> float:
        """Return when a status may be written."""
        attempt = self._attempts.get(status.key)
        is_tried = attempt is not None and attempt.wanted == (status.generation, status.wanted)
        again = attempt.until if attempt is not None and is_tried else 0.0
        return max(again, self._off_until.get(status.resource, 0.0))

    async def _until_something_is_due(self) -> None:
        """Wait for news, or until a status may be written again."""
        wait = min(map(self._due_at, self._all()), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wait is None else wait - self._clock()):
                await self._news.wait()

    async def _write(self, client: ApiClient, status: ObjectStatus) -> float:
        """Write a status; return how long to wait before the next one."""
        try:
            await client.patch(
                status.resource,
                status.patch(self._wall_clock()),
                dict[str, Any],
                name=status.name,
                namespace=status.namespace,
                subresource="status",
            )
        except KubernetesApiError as error:
            if not isinstance(error, ApiError) or _is_transient(error):
                return self._note_fault(error)
            self._note_refusal(status, error)
        else:
            self._note_attempt(status, AGAIN_SECONDS)
            self._logged.discard(status.resource)
        self._backoff.reset()
        self._is_failing = False
        return self._around(PACE_SECONDS)

    def _note_refusal(self, status: ObjectStatus, error: ApiError) -> None:
        if error.status == _CONFLICT:
            self._note_attempt(status, self._around(_CONFLICT_SECONDS))
            return
        self._note_attempt(status, AGAIN_SECONDS)
        # Without the name of an object, it is the status subresource that is not found.
        has_no_status = error.status == _NOT_FOUND and f'"{status.name}"' not in error.message
        if has_no_status or error.status == _FORBIDDEN:
            self._off_until[status.resource] = self._clock() + AGAIN_SECONDS
        if error.status == _FORBIDDEN:
            if status.resource not in self._logged:
                self._logged.add(status.resource)
                _log.info("status of objects is not written", reason=str(error))
        elif error.status != _NOT_FOUND:
            _log.warning("status of an object refused", error=str(error))

    def _note_attempt(self, status: ObjectStatus, seconds: float) -> None:
        wanted = status.generation, status.wanted
        self._attempts[status.key] = _Attempt(wanted, self._clock() + seconds)

    def _note_fault(self, error: KubernetesApiError) -> float:
        if not self._is_failing:
            self._is_failing = True
            _log.warning("status of objects cannot be written now", error=str(error))
        return self._backoff.next_seconds(error)

    def _around(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.5, 1.5)


def _is_transient(error: ApiError) -> bool:
    return error.status in _TRANSIENT or error.status >= 500  # noqa: PLR2004
