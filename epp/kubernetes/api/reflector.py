"""Keep a local copy of the objects of one resource.

A reflector begins with a *watch list*, a watch that first sends all objects (KEP-3157), or where
the server cannot do that, with a list in pages. It then follows the watch, and resumes it from the
last resource version when it ends. If the server no longer has that version (410), the reflector
reads all objects again and replaces its copy, so changes and deletions that it missed are not lost.

Failures never end a reflector: it keeps the last objects, reports the failure in its status, and
tries again. The kernel notices a vanished server within 25 s (:mod:`.connection`). A server that
hangs while its kernel responds is noticed by the absence of bookmarks, which arrive about once a
minute.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic

import msgspec
import structlog

from epp.kubernetes.api.backoff import Backoff
from epp.kubernetes.api.client import ApiClient
from epp.kubernetes.api.errors import ApiError, ConnectionFailedError, KubernetesApiError
from epp.kubernetes.api.events import (
    Bookmark,
    Changed,
    Decoder,
    Deleted,
    Failed,
    ListPage,
    T,
    Undecodable,
)
from epp.kubernetes.api.local_copy import Key, LocalCopy
from epp.kubernetes.api.resource import ApiCall, Resource

_log = structlog.get_logger(__name__)

_PAGE_OBJECTS: Final = 500
_LIST_SECONDS: Final = 60.0
"""Limit of one page."""
_WATCH_SECONDS: Final = (300, 600)
"""Range of the time after which the server is asked to end a watch, as in client-go."""
_IDLE_SECONDS: Final = 150.0
"""Two bookmarks missed; a server without bookmarks is asked for a new watch that often."""
_WATCH_LIST_SECONDS: Final = 20.0
"""Limit of the initial state of a watch list: a server that does not support it never ends it."""
_STEADY_SECONDS: Final = 1.0
"""Age at which a watch counts as a success, even a silent one."""

_REFUSED: Final = frozenset({400, 422})
"""Statuses by which servers refuse parameters that they do not know or have switched off."""


@dataclass(slots=True, eq=False)
class ReflectorStatus:
    """The state of a reflector; the copy is current if synced without a fault."""

    is_synced: bool = False
    """Whether all objects have been read once."""
    is_following: bool = False
    """Whether a watch is open now, so that all changes arrive."""
    last_contact: float | None = None
    """When the server last confirmed or changed the copy, by the reflector's clock."""
    fault: KubernetesApiError | None = None
    """Why the copy cannot be kept current now."""
    relists: int = 0
    """How often all objects have been read again."""
    undecodable: int = 0
    """Objects that are left out because they do not have the declared form."""


class Reflector(Generic[T]):
    """Follows the objects of a resource while :meth:`run` runs.

    Args:
        client: The API server.
        resource: What to follow.
        decoder: Decodes the objects.
        changed: Called after changes of ``objects`` and ``undecodable``, once for all events that
            have arrived together, and at the first sync even if there are no objects. It must not
            raise.
        status_changed: Called after each failure, and when a watch opens or ends. It must not
            raise.
        copy: Copy that gets the objects; by default a new :class:`LocalCopy`.
        namespace: None for all namespaces and for resources without a namespace.
        label_selector: As in the API; empty for all.
        field_selector: Such as ``metadata.name=x``; empty for all.
        clock: Monotonic clock in seconds, for the status.
        sleep: Waits between two attempts.
        rng: Source of jitter.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        decoder: Decoder[T],
        *,
        changed: Callable[[], None],
        status_changed: Callable[[], None] = lambda: None,
        copy: LocalCopy[T] | None = None,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.status = ReflectorStatus()
        self._copy = LocalCopy[T]() if copy is None else copy
        self.objects: Mapping[Key, T] = MappingProxyType(self._copy.objects)
        """Live view of the copy; an object that has not changed stays the same instance."""
        self._client = client
        self._decoder = decoder
        self._changed = changed
        self._status_changed = status_changed
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._selectors = {name: value for name, value in selectors.items() if value}
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._backoff = Backoff(self._rng)
        self._has_watch_list = True
        self._notifies = False
        """Whether ``changed`` is about to be called."""
        self._is_steady = self._has_succeeded = False
        """Whether the watch of the current attempt lasts, and whether the attempt has succeeded."""
        self._logged_undecodable: set[Key] = set()
        self._log = _log.bind(resource=resource.plural, namespace=namespace)

    @property
    def undecodable(self) -> Mapping[Key, Undecodable]:
        """The objects that are not in ``objects``, as they do not have the declared form."""
        return self._copy.undecodable

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        while True:
            self._is_steady = self._has_succeeded = False
            resumes = bool(self._copy.version)
            error = await self._attempt(resumes)
            if isinstance(error, ApiError) and self._copy.version and _is_stale(error):
                self._copy.version = ""
                if resumes:
                    continue
            if error is not None and not self._has_succeeded:
                self._note_fault(error)
            # A watch that was cut or has ended is resumed; one that was short, not at once.
            if not self._is_steady:
                await self._sleep(self._backoff.next_seconds(error))

    async def _attempt(self, resumes: bool) -> KubernetesApiError | None:
        """Read all objects, unless a watch ``resumes``, and watch; return why that failed."""
        try:
            if not resumes:
                if self._has_watch_list and await self._watch_list():
                    return None
                await self._list()
            async with self._open_watch({"resourceVersion": self._copy.version}) as batches:
                await self._follow(batches)
        except KubernetesApiError as error:
            return error
        return None

    async def _watch_list(self) -> bool:
        """Read all objects by a watch and follow it; return False if the server cannot do that."""
        params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        try:
            async with self._open_watch(params) as batches:
                async with asyncio.timeout(_WATCH_LIST_SECONDS):
                    rest = await self._read_initial_state(batches)
                await self._follow(batches, rest)
        except TimeoutError:
            self._has_watch_list = False  # the server has ignored the parameters
        except ApiError as error:
            if self._has_succeeded or error.status not in _REFUSED:
                raise
            self._has_watch_list = False
        return self._has_watch_list

    async def _list(self) -> None:
        """Read all objects in pages."""
        fresh = LocalCopy[T]()
        page = await self._page({"limit": _PAGE_OBJECTS})
        fresh.add_page(page)
        while page.continue_token:
            try:
                page = await self._page({"limit": _PAGE_OBJECTS, "continue": page.continue_token})
            except ApiError as error:
                if not error.is_expired:
                    raise
                # Reading the pages took longer than the server keeps a version: read all in one.
                fresh = LocalCopy[T]()
                page = await self._page({})
            fresh.add_page(page)
        self._replace(fresh)

    async def _page(self, params: Mapping[str, str | int]) -> ListPage[T]:
        body = await self._client.list_page(
            self.resource,
            namespace=self.namespace,
            params={**self._selectors, **params},
            timeout_seconds=_LIST_SECONDS,
        )
        try:
            return self._decoder.page(body)
        except msgspec.DecodeError as error:
            raise ConnectionFailedError(f"the response is no list: {error}") from error

    def _open_watch(
        self, params: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[list[bytes]]]:
        return self._client.watch(
            self.resource,
            namespace=self.namespace,
            params={
                **self._selectors,
                **params,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": self._rng.randint(*_WATCH_SECONDS),
            },
            idle_seconds=_IDLE_SECONDS,
        )

    async def _read_initial_state(self, batches: AsyncIterator[list[bytes]]) -> list[bytes]:
        """Replace the copy by the initial state of a watch list; return the events after it."""
        fresh = LocalCopy[T]()
        async for lines in batches:
            for number, line in enumerate(lines, start=1):
                event = self._event(line)
                if not isinstance(event, Bookmark):
                    fresh.apply(event)
                elif event.ends_initial_events:
                    fresh.version = event.resource_version
                    self._replace(fresh)
                    return lines[number:]
        raise ConnectionFailedError("the watch ended before all objects had been sent")

    async def _follow(
        self, batches: AsyncIterator[list[bytes]], first: Iterable[bytes] = ()
    ) -> None:
        """Apply the events of a watch, beginning with ``first``, until it ends."""
        steady = asyncio.get_running_loop().call_later(_STEADY_SECONDS, self._note_steady)
        self._set_following(True)
        try:
            self._apply(first)
            async for lines in batches:
                self._apply(lines)
                self._note_success()
        finally:
            steady.cancel()
            self._set_following(False)

    def _apply(self, lines: Iterable[bytes]) -> None:
        has_changed = False
        try:
            for line in lines:
                event = self._event(line)
                if isinstance(event, Bookmark):
                    self._copy.advance(event.resource_version)
                else:
                    has_changed |= self._copy.apply(event)
        finally:  # events before one that fails count
            self._log_undecodable()
            if has_changed:
                self._notify_soon()

    def _event(self, line: bytes) -> Changed[T] | Deleted[T] | Undecodable | Bookmark:
        try:
            event = self._decoder.event(line)
        except msgspec.DecodeError as error:
            raise ConnectionFailedError(f"the response is no watch event: {error}") from error
        if not isinstance(event, Failed):
            return event
        status = event.object
        call = ApiCall(verb="watch", resource=self.resource, namespace=self.namespace)
        raise ApiError(status.code, status.reason, status.message, call)

    def _replace(self, fresh: LocalCopy[T]) -> None:
        """Replace the copy by ``fresh``."""
        has_changed = self._copy.replace_by(fresh)
        self._log_undecodable()
        was_synced, self.status.is_synced = self.status.is_synced, True
        self.status.relists += was_synced
        self._note_success()
        if has_changed or not was_synced:
            self._notify_soon()

    def _notify_soon(self) -> None:
        """Call ``changed`` when all events that have been received are applied.

        The server sends each event in a chunk of its own; events of one read from the network are
        applied in one step of the event loop.
        """
        if not self._notifies:
            self._notifies = True
            asyncio.get_running_loop().call_soon(self._notify)

    def _notify(self) -> None:
        self._notifies = False
        self._changed()

    def _log_undecodable(self) -> None:
        """Log each object once that has become undecodable."""
        undecodable = self._copy.undecodable
        self.status.undecodable = len(undecodable)
        for key in undecodable.keys() - self._logged_undecodable:
            error = undecodable[key].reason
            self._log.warning("object left out", name="/".join(key), error=error)
        self._logged_undecodable = set(undecodable)

    def _set_following(self, is_following: bool) -> None:
        self.status.is_following = is_following
        self._status_changed()

    def _note_steady(self) -> None:
        self._is_steady = True
        self._note_success()

    def _note_success(self) -> None:
        self._has_succeeded = True
        self._backoff.reset()
        self.status.last_contact = self._clock()
        fault = self.status.fault
        if fault is not None:
            self.status.fault = None
            write = self._log.debug if fault.is_relayed else self._log.info
            write("objects followed again", relists=self.status.relists)

    def _note_fault(self, error: KubernetesApiError) -> None:
        before, self.status.fault = self.status.fault, error
        if before is None or _kind(before) != _kind(error):
            # The relay has logged a fault that it passes on.
            write = self._log.debug if error.is_relayed else self._log.warning
            write("objects not followed", error=str(error))
        self._status_changed()


def _is_stale(error: ApiError) -> bool:
    """Whether the watch cannot be resumed from its resource version."""
    return error.is_expired or error.status in _REFUSED


def _kind(error: KubernetesApiError) -> object:
    return error.status if isinstance(error, ApiError) else ConnectionFailedError
