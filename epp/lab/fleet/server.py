"""One fake vLLM server: an address, its connections, and the process behind it."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

from epp.lab.fleet.config import FleetConfig
from epp.lab.fleet.engine import Engine
from epp.lab.fleet.errors import PortTakenError
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.faults import ServerFaults
from epp.lab.fleet.generation import Counters
from epp.lab.fleet.http import FakeServerConnection
from epp.lab.fleet.kv_events import KvEventEncoder
from epp.lab.fleet.process import FakeProcess
from epp.lab.fleet.request_log import RequestLog
from epp.lab.fleet.self_load import StepLag
from epp.lab.fleet.service import Service

if TYPE_CHECKING:  # it imports pyzmq, which is optional
    from epp.lab.fleet.kv_publisher import KvPublisher

_BACKLOG = 1024

_ACCEPT_TURNS = 4
"""Turns of the event loop within which asyncio reports a connection that was accepted before."""


class FakeServer:
    """One endpoint of the fleet."""

    def __init__(
        self,
        config: FleetConfig,
        index: int,
        log: RequestLog | None = None,
        publishers: Sequence[KvPublisher] = (),
    ) -> None:
        self.index = index
        """Index in the fleet."""
        self.name = f"endpoint-{index}"
        """Name in `x-served-by`."""
        self.host = config.host_of(index)
        """Address it listens on."""
        self.port = config.port_of(index)
        """Port it listens on; 0 until it is started on a free one."""
        self.counters = Counters()
        """Counters of its requests; they outlive a restart."""
        self.faults = ServerFaults()
        """The faults that hold; see `inject`."""
        self.lag = StepLag()
        """Delays of its engine steps behind their nominal ends."""
        self._config = config
        self._engine_config = config.engine_of(index)
        self._log = log or RequestLog()
        self._connections: set[FakeServerConnection] = set()
        self._publishers = tuple(publishers)
        self._published: FakeProcess | None = None
        self._listener: asyncio.Server | None = None
        self._reservation: socket.socket | None = None
        self._started_at: float | None = None
        self._process: FakeProcess | None = None
        self._service: Service | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether it accepts connections."""
        return self._listener is not None

    @property
    def engine(self) -> Engine:
        """The simulated engine of rank 0; the server has been started."""
        return self._running()[0].engines[0]

    @property
    def worst_lag_seconds(self) -> float:
        """Longest delay of an engine step behind its nominal end, see `EngineDriver`."""
        return self.lag.worst_seconds

    async def start(self) -> None:
        """Listen.

        Raises:
            PortTakenError: the port is in use.
        """
        loop = asyncio.get_running_loop()
        try:
            # In two steps, so that the listener can be closed after cancellation in the second.
            self._listener = await loop.create_server(
                self._make_connection,
                self.host,
                self.port,
                backlog=_BACKLOG,
                reuse_address=True,
                start_serving=False,
            )
            if self._reservation is None:
                listener = self._listener.sockets[0]
                self._reservation = _bind(listener.family, listener.getsockname())
                self.port = self._reservation.getsockname()[1]
            if self._process is None:
                self._start_process()
            await self._publish_events()
            await self._listener.start_serving()
        except OSError as error:
            self._close_listener()
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(self.name, self.host, self.port) from error
            raise

    async def refuse(self) -> None:
        """Stop listening and close all connections; `start` listens again, on the same port."""
        self._close_listener()
        self._abort_connections()
        if self._service is not None:
            await self._service.finish()
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)  # The transports close in the next turn of the loop.
            self._abort_connections()

    async def inject(self, faults: ServerFaults) -> None:
        """Replace the current faults by these.

        Raises:
            PortTakenError: While the server refused connections, another program with
                `SO_REUSEADDR` has begun to listen on the port.
        """
        before = replace(self.faults)
        for field in fields(ServerFaults):
            setattr(self.faults, field.name, getattr(faults, field.name))
        if faults.restarts != before.restarts:
            await self.refuse()
            self._stop_process()
            self._start_process()
        process, service = self._running()
        for driver in process.drivers:
            driver.engine.change_speed(faults.speed)
            if faults.hang:
                driver.pause()
            else:
                driver.resume()
        if faults.kv_events_restarts != before.kv_events_restarts:
            await self._open_publishers(process)
        if faults.stale_metrics and not before.stale_metrics:
            service.pages.metrics.freeze()
        if faults.refuse and self.listening:
            self._close_listener()
            for connection in tuple(self._connections):
                connection.close_when_idle()
        elif not faults.refuse and not self.listening:
            await self.start()

    async def close(self) -> None:
        """Stop the server and its engine."""
        await self.refuse()
        if self._reservation is not None:
            self._reservation.close()
        self._stop_process()

    def _running(self) -> tuple[FakeProcess, Service]:
        if self._process is None or self._service is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self._process, self._service

    def _start_process(self) -> None:
        faults, config = self.faults, self._engine_config
        if self._started_at is None:
            self._started_at = asyncio.get_running_loop().time()
        if faults.taken_over:
            config = replace(config, adapters=())  # another server's
        self._process = process = FakeProcess(
            config,
            self._config.ranks,
            model=faults.model or self._config.model,
            name=f"successor-of-{self.name}" if faults.taken_over else self.name,
            restarts=faults.restarts,
            engine_type=self._config.engine_type,
            stages=self.counters.stages,
            lag=self.lag,
            started_at=self._started_at,
        )
        self._service = Service(
            process,
            faults,
            self.counters,
            self._log,
            address=self.address,
            worker=self.index,
            seed=self._config.seed,
            event_sources=self.event_sources,
        )

    def _stop_process(self) -> None:
        for publisher in self._publishers:
            publisher.close()
        if self._process is not None:
            for driver in self._process.drivers:
                driver.stop()

    async def _publish_events(self) -> None:
        """Open the publishers of the current process, if they are not open."""
        process = self._running()[0]
        if self._published is not process and self._publishers:
            self._published = process
            await self._open_publishers(process)
            process.send_events(
                [partial(each.publish, faults=self.faults) for each in self._publishers]
            )

    async def _open_publishers(self, process: FakeProcess) -> None:
        settings = self._config.kv_events
        if settings is None:
            return
        topic = f"kv@{self.address}@{process.api.model}"
        for rank, publisher in enumerate(self._publishers):
            ports = settings.ports_of(self.index * self._config.ranks + rank)
            encoder = KvEventEncoder(settings.format, self._engine_config.block_size, rank)
            await publisher.open(self.host, ports, topic, encoder)

    def event_sources(self) -> list[dict[str, object]]:
        """Return the publishers of its KV events, as in `/kv_event_sources`."""
        return [
            {"data_parallel_rank": rank, **publisher.source()}
            for rank, publisher in enumerate(self._publishers)
        ]

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _abort_connections(self) -> None:
        for connection in tuple(self._connections):
            connection.reset()
            # The transport would call it later; the engine's slots must be free at once.
            connection.connection_lost(None)

    def _make_connection(self) -> FakeServerConnection:
        return FakeServerConnection(
            self._handle,
            self._connections,
            common_headers=self._running()[0].common_headers,
            max_body_bytes=self._config.max_body_bytes,
        )

    def _handle(self, exchange: Exchange) -> None:
        self._running()[1].handle(exchange)


def _bind(family: int, address: tuple[str, int]) -> socket.socket:
    """Bind a socket beside a listener, so that its port is kept while it does not listen."""
    reservation = socket.socket(family)
    try:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(address)
    except OSError:
        reservation.close()
        raise
    return reservation
