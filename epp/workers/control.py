"""The stream between a worker and its supervisor: lines of JSON in both directions.

The worker reports its state four times a second, from its event loop: a silent worker hangs. The
supervisor orders it to lead or to reload. When the stream ends, the other side has ended, so no
worker outlives its supervisor.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec
import structlog

from epp.workers.leadership import Leadership

_log = structlog.get_logger(__name__)

REPORT_SECONDS: Final = 0.25
"""Time between two reports of a worker."""
MAX_LINE_BYTES: Final = 1 << 20
"""Longest message: the outcome of a reload has a text for each fault of the configuration."""

M = TypeVar("M", bound=msgspec.Struct)


class WorkerReport(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The state of a worker, or the outcome of a reload."""

    serves: bool = False
    """Whether its ports are open."""
    ready: bool = False
    """Whether requests can be decided."""
    streams: int = 0
    """Open streams of requests."""
    reloaded: list[str] | None = None
    """The outcome of a reload: a text for each configuration, "" if it is in use."""


class Order(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An order of the supervisor."""

    lead: bool = False
    """Scrape for all workers from now on, and own the queues of flow control."""
    reload: bool = False
    """Reload the configuration, and report the outcome."""


def line_of(message: msgspec.Struct) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


async def messages(reader: asyncio.StreamReader, kind: type[M]) -> AsyncIterator[M]:
    """Yield the messages of a stream until its end, without those that cannot be read.

    The other side may be killed while it writes, so the last line may be incomplete.
    """
    while True:
        try:
            line = await reader.readline()
            if not line.endswith(b"\n"):
                return
            message = msgspec.json.decode(line, type=kind)
        except ConnectionError:
            return
        except ValueError as error:  # too long, or malformed
            _log.error("message between supervisor and worker was not read", error=str(error))
            continue
        yield message


class ControlStream:
    """The worker's end.

    Args:
        descriptor: Descriptor of the socket, which this object closes.
        leadership: Taken when the supervisor orders it.
        stop: Set at the end of the stream.
    """

    def __init__(self, descriptor: int, leadership: Leadership, stop: asyncio.Event) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._leadership = leadership
        self._stop = stop
        self.serves = False
        """Whether the ports are open."""

    async def run(
        self,
        is_ready: Callable[[], bool],
        streams: Callable[[], int],
        reload: Callable[[], Awaitable[Sequence[str]]],
    ) -> None:
        """Send reports and carry out orders until cancelled.

        Args:
            is_ready: Whether requests can be decided.
            streams: Number of open streams.
            reload: Reloads the configuration, and returns the faults.
        """
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=MAX_LINE_BYTES)

        async def report() -> None:
            while not writer.is_closing():
                writer.write(
                    line_of(WorkerReport(serves=self.serves, ready=is_ready(), streams=streams()))
                )
                await asyncio.sleep(REPORT_SECONDS)

        async def act(order: Order) -> None:
            if order.lead:
                _log.info("this worker scrapes for all")
                self._leadership.take()
            if order.reload:
                writer.write(line_of(WorkerReport(reloaded=list(await reload()))))

        try:
            async with asyncio.TaskGroup() as tasks:
                reporting = tasks.create_task(report(), name="reports to the supervisor")
                async for order in messages(reader, Order):
                    tasks.create_task(act(order), name="order of the supervisor")
                reporting.cancel()
        finally:
            writer.close()
        if not self._stop.is_set():
            _log.error("the supervisor has ended, so this worker drains and ends")
            self._stop.set()
