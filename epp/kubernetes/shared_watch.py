"""One collection of objects, followed at the API server once for several processes."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import unquote

import msgspec

from epp.kubernetes.api import KubernetesApiError, Reflector, Resource
from epp.kubernetes.api.recorded_copy import (
    RawDecoder,
    RawObject,
    RecordedCopy,
    bookmark,
    line_of,
)
from epp.kubernetes.shared_client import SharedClient

UNUSED_SECONDS: Final = 60.0
"""Time for which an unused watch is kept: longer than a worker waits after a failure."""
_CHUNK_BYTES: Final = 128 << 10
"""Length at which a chunk of lines is sent."""
_GONE: Final = line_of(
    b"ERROR",
    b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,'
    b'"message":"the watch relay does not have all changes since then"}',
)


@dataclass(frozen=True, slots=True)
class WatchScope:
    """A selection of objects to follow."""

    resource: Resource
    """The resource; its kind, which a path lacks, is replaced by the plural."""
    namespace: str | None
    label_selector: str
    field_selector: str

    @classmethod
    def of(cls, path: str, label_selector: str, field_selector: str) -> Self | None:
        """Return the scope of a list or a watch; None if the path is not that of a collection.

        Args:
            path: ``/api/VERSION/…`` or ``/apis/GROUP/VERSION/…``, quoted.
            label_selector: As in the API; empty for all.
            field_selector: The same.
        """
        match [unquote(part) for part in path.split("/")]:
            case ["", "api", version, *rest]:
                group = ""
            case ["", "apis", group, version, *rest]:
                pass
            case _:
                return None
        match rest:
            case ["namespaces", within, plural]:
                namespace: str | None = within
            case [plural]:
                namespace = None
            case _:
                return None
        resource = Resource(group, version, plural, plural)
        return cls(resource, namespace, label_selector, field_selector)


class SharedWatch:
    """Follows the objects of a scope while :meth:`run` runs, and passes them on.

    Args:
        scope: The objects.
        unused: Called when it has had no user for :data:`UNUSED_SECONDS`.
    """

    def __init__(self, scope: WatchScope, unused: Callable[["SharedWatch"], None]) -> None:
        self.scope = scope
        """The objects."""
        self._unused = unused
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None
        """Runs while there are no users."""
        self._news = asyncio.Event()
        """Set, and replaced, after each event and each change of the state."""
        self._copy = RecordedCopy(self._notify)
        self._reflector: Reflector[RawObject] | None = None
        self._failure: KubernetesApiError | None = None
        """Why :meth:`run` has ended; None if it has not."""

    @property
    def fault(self) -> KubernetesApiError | None:
        """Why the copy is not current; None if it is, or if that is not known yet."""
        if self._failure is not None or self._reflector is None:
            return self._failure
        status = self._reflector.status
        return None if status.is_following else status.fault

    @property
    def is_current(self) -> bool:
        """Whether all objects are known, and a watch of the API server is open."""
        status = None if self._reflector is None else self._reflector.status
        return status is not None and status.is_synced and status.is_following

    async def run(self, shared: SharedClient, sleep: Callable[[float], Awaitable[object]]) -> None:
        """Follow the objects until cancelled.

        Args:
            shared: The API server.
            sleep: Waits between two attempts after a failure.

        Raises:
            ConfigurationError: There is no usable configuration of the API server.
        """
        scope = self.scope
        async with shared.use() as client:
            self._reflector = Reflector(
                client,
                scope.resource,
                RawDecoder(),
                changed=lambda: None,  # the copy reports each event
                status_changed=self._notify,
                copy=self._copy,
                namespace=scope.namespace,
                label_selector=scope.label_selector,
                field_selector=scope.field_selector,
                sleep=sleep,
            )
            await self._reflector.run()

    def fail(self, error: KubernetesApiError) -> None:
        """Record why :meth:`run` has ended."""
        self._failure = error
        self._notify()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the watch while the block runs, and for :data:`UNUSED_SECONDS` afterwards."""
        self._users += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(UNUSED_SECONDS, self._unused, self)

    async def until_current(self) -> KubernetesApiError | None:
        """Wait until the copy is current; return why it is not, as soon as that is known."""
        while not self.is_current:
            if self.fault is not None:
                return self.fault
            await self._news.wait()
        return None

    def listed(self) -> bytes:
        """Return all objects as a list in one page."""
        version = msgspec.json.encode(self._copy.version)
        items = b",".join(each.json for each in self._copy.objects.values())
        head = b'{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":%b},"items":[%b]}'
        return head % (version, items)

    def number_after(self, version: str) -> int | None:
        """Return the number of the first event after a version; None if it is unknown."""
        return self._copy.number_after(version)

    async def events(self, number: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch, some at a time, until the copy cannot be kept current.

        A watch that reads too slowly ends with an ERROR event, as at the API server.

        Args:
            number: Number of the first event; None to begin with all objects.
        """
        with self.used():
            if number is None:
                number = self._copy.end
                first = self._first_lines()
                while chunk := _some(first):
                    yield b"".join(chunk)
            while (events := self._copy.lines_from(number)) is not None:
                if lines := _some(events):
                    number += len(lines)
                    yield b"".join(lines)
                elif self.fault is None:
                    await self._news.wait()
                else:
                    return
            yield _GONE

    def _first_lines(self) -> Iterator[bytes]:
        """Return the current objects as events, and the bookmark that ends them."""
        objects = [(b"ADDED", each.json) for each in self._copy.objects.values()]
        end = bookmark(self._copy.version, ends_initial_events=True)
        return (line_of(kind, json) for kind, json in [*objects, (b"BOOKMARK", end)])

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _some(lines: Iterator[bytes]) -> list[bytes]:
    """Take the next lines for one chunk of a response; none at the end."""
    taken: list[bytes] = []
    size = 0
    for line in lines:
        taken.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            break
    return taken
