"""Server-sent events below ``/debug/``: one event a second, created once for all viewers of a feed.

A feed runs while it has viewers, on the loop of the HTTP server. A viewer first gets a snapshot,
then the changes since. One that reads too slowly misses changes and gets a new snapshot instead;
one that does not read at all is closed by the server's time limit. An event comes every second even
if nothing changes, so that a viewer notices a lost connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from epp.observability.bounded_text import json_line
from epp.observability.http_connection import Response
from epp.observability.loop_calls import LoopCalls, LoopStoppedError

_log = structlog.get_logger(__name__)

MAX_VIEWERS: Final = 16
_INTERVAL_SECONDS: Final = 1.0
_MAX_PENDING: Final = 4
"""Events that a viewer may be behind."""
_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # a proxy would hold the events back
    ("X-Content-Type-Options", "nosniff"),
)


class EventSource(Protocol):
    """Creates the events of one feed; used on the loop of the HTTP server."""

    async def begin(self, calls: LoopCalls) -> None:
        """Read the first state: the first viewer has arrived."""

    def snapshot(self) -> bytes:
        """Return the current state as an event."""

    async def advance(self, calls: LoopCalls) -> bytes | None:
        """Read the state again; return the changes as an event, None for a new snapshot."""

    def end(self) -> None:
        """Release the state: the last viewer has left."""


def event(kind: str, document: object) -> bytes:
    """Return a server-sent event whose data is one line of JSON."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json_line(document))


class EventFeeds:
    """All feeds of the metrics port.

    Args:
        sources: Returns the current sources by path below ``/debug/``.
        calls: Calls functions on the main event loop.
        max_viewers: Limit on viewers of all feeds together.
        interval_seconds: Time between two events.
    """

    def __init__(
        self,
        sources: Callable[[], Mapping[str, EventSource]],
        calls: LoopCalls,
        *,
        max_viewers: int = MAX_VIEWERS,
        interval_seconds: float = _INTERVAL_SECONDS,
    ) -> None:
        self._sources = sources
        self._calls = calls
        self._max_viewers = max_viewers
        self._interval_seconds = interval_seconds
        self._feeds: dict[str, _Feed] = {}

    def respond(self, name: str) -> Response | None:
        """Return the feed at a path as a response; None if there is none."""
        if name not in self._sources():
            return None
        if sum(len(feed.viewers) for feed in self._feeds.values()) >= self._max_viewers:
            return Response.of_error(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"there are {self._max_viewers} viewers already; close another live page",
                ("Retry-After", "10"),
            )
        return Response(
            HTTPStatus.OK, "text/event-stream", b"", _HEADERS, lambda: self._stream(name)
        )

    async def _stream(self, name: str) -> AsyncGenerator[bytes, None]:
        source = self._sources().get(name)
        if source is None:  # the pool has just ended
            return
        feed = self._feeds.get(name)
        if feed is None or feed.is_over or feed.source is not source:
            feed = self._feeds[name] = _Feed(
                source, self._calls, lambda: self._sources().get(name) is source
            )
        viewer = _Viewer()
        feed.join(viewer, self._interval_seconds)
        try:
            while (chunk := await viewer.following()) is not None:
                yield chunk
        finally:
            feed.leave(viewer)
            if not feed.viewers and self._feeds.get(name) is feed:
                del self._feeds[name]


class _Viewer:
    """The events that one client has not read yet."""

    def __init__(self) -> None:
        self._pending: deque[bytes | None] = deque()
        self._has_more = asyncio.Event()
        self.needs_snapshot = True

    async def following(self) -> bytes | None:
        """Return the next event; None at the end of the feed."""
        while not self._pending:
            self._has_more.clear()
            await self._has_more.wait()
        return self._pending.popleft()

    @property
    def is_idle(self) -> bool:
        """Whether it has read everything."""
        return not self._pending

    def put(self, chunk: bytes | None) -> None:
        """Add an event, or the end; one that is too far behind loses its events instead."""
        if chunk is not None and len(self._pending) >= _MAX_PENDING:
            self._pending.clear()
            self.needs_snapshot = True
            return
        self._pending.append(chunk)
        self._has_more.set()


class _Feed:
    """One source and its viewers."""

    def __init__(
        self, source: EventSource, calls: LoopCalls, is_current: Callable[[], bool]
    ) -> None:
        self.source = source
        self.viewers: set[_Viewer] = set()
        self.is_over = False
        self._calls = calls
        self._is_current = is_current
        self._snapshot: bytes | None = None
        """The current state, encoded once for all viewers that need it."""
        self._has_begun = False
        self._task: asyncio.Task[None] | None = None

    def join(self, viewer: _Viewer, interval_seconds: float) -> None:
        self.viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run(interval_seconds), name="event-feed")
        elif self._has_begun:
            self._send_snapshot(viewer)

    def leave(self, viewer: _Viewer) -> None:
        self.viewers.discard(viewer)
        if not self.viewers and not self.is_over and self._task is not None:
            self._task.cancel()
            self._end()

    async def _run(self, interval_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self.source.begin(self._calls)
            self._has_begun = True
            self._send(None)
            due = loop.time()
            while self._is_current():
                # A late event does not make the following ones come faster.
                due = max(due + interval_seconds, loop.time())
                await asyncio.sleep(due - loop.time())
                change = await self.source.advance(self._calls)
                self._snapshot = None
                self._send(change)
        except LoopStoppedError:
            pass
        except Exception:
            _log.exception("event feed failed")
        if not self.is_over:
            self._end()
        for viewer in self.viewers:
            viewer.put(None)

    def _end(self) -> None:
        # Not when the task ends: the next feed of the source may have begun by then.
        self.is_over = True
        self.source.end()

    def _send(self, change: bytes | None) -> None:
        for viewer in self.viewers:
            if change is not None and not viewer.needs_snapshot:
                viewer.put(change)
            elif viewer.is_idle:
                self._send_snapshot(viewer)
            else:
                viewer.needs_snapshot = True

    def _send_snapshot(self, viewer: _Viewer) -> None:
        if self._snapshot is None:
            self._snapshot = self.source.snapshot()
        viewer.needs_snapshot = False
        viewer.put(self._snapshot)
