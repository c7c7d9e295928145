"""N fake servers in one process, started and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from epp.lab.fleet.config import FleetConfig
from epp.lab.fleet.control import ControlServer
from epp.lab.fleet.errors import FleetConfigError
from epp.lab.fleet.faults import FaultPlan
from epp.lab.fleet.injector import FaultInjector
from epp.lab.fleet.request_log import RequestLog
from epp.lab.fleet.self_load import SelfLoad, StepLag
from epp.lab.fleet.server import FakeServer

if TYPE_CHECKING:
    from epp.lab.fleet.kv_publisher import KvPublishers


class Fleet:
    """A fleet of fake vLLM servers; an async context manager, running inside its block."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        faults: FaultPlan | None = None,
        log: RequestLog | None = None,
        control_port: int | None = None,
    ) -> None:
        """Create the servers.

        Args:
            config: The configuration.
            faults: Faults that `run` applies; their times are seconds after the first request.
            log: Log of the requests.
            control_port: Port of `ControlServer`; 0 for any, None for none.

        Raises:
            ConfigError: A fault names a server that the fleet does not have, or pyzmq is missing.
        """
        self.config = config
        """The configuration."""
        self.log = log or RequestLog()
        """The requests that the servers have received."""
        self.self_load = SelfLoad()
        """How busy the process is."""
        self._publishers = _make_publishers(config)
        publishers = self._publishers.publishers if self._publishers is not None else ()
        ranks = config.ranks
        self.servers = tuple(
            FakeServer(config, index, self.log, publishers[index * ranks : (index + 1) * ranks])
            for index in range(config.endpoints)
        )
        """The servers, by index."""
        plan = (faults or FaultPlan()).scaled(config.time_scale)
        schedule = plan.schedule(workers=config.endpoints, seed=config.seed)
        self.injector = FaultInjector(schedule, self.servers)
        """Applies the faults."""
        self.control = ControlServer(self.stats, self.log, host=config.host, port=control_port)
        """Serves `stats` and the log."""

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports by index."""
        return tuple(server.port for server in self.servers)

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` by index."""
        return tuple(server.address for server in self.servers)

    @property
    def worst_lag_seconds(self) -> float:
        """Maximum delay of an engine step; normally milliseconds, see `EngineDriver`."""
        return max(server.worst_lag_seconds for server in self.servers)

    def stats(self) -> dict[str, Any]:
        """Return counters of the requests, and the load of this process (`SelfLoad.report`)."""
        lag = StepLag()
        for server in self.servers:
            lag.add(server.lag)
        return {
            "servers": len(self.servers),
            "received": self.log.received,
            "ended": self.log.ended,
            **self.self_load.report(lag),
        }

    async def start(self) -> None:
        """Start all servers, or none.

        Raises:
            PortTakenError: A port is in use.
        """
        try:
            for server in self.servers:
                await server.start()
            await self.control.start()
        except BaseException:
            await self.close()
            raise
        self.self_load.start()

    async def close(self) -> None:
        """Stop all servers and abort their requests."""
        self.self_load.stop()
        self.control.close()
        for server in self.servers:
            await server.close()
        if self._publishers is not None:
            self._publishers.close()
        await self.log.close()

    async def run(
        self, stop: asyncio.Event, *, ready: Callable[[Fleet], None] | None = None
    ) -> None:
        """Serve, with the faults of the plan, until `stop` is set.

        Args:
            stop: Ends the run.
            ready: Called when all servers listen, except those that a fault at time 0 stops.
        """
        async with self, asyncio.TaskGroup() as group:
            await self.injector.begin()
            injector = group.create_task(self.injector.run(self.log.begun), name="faults")
            if ready is not None:
                ready(self)
            await stop.wait()
            injector.cancel()

    async def __aenter__(self) -> Fleet:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _make_publishers(config: FleetConfig) -> KvPublishers | None:
    if config.kv_events is None:
        return None
    try:
        from epp.lab.fleet.kv_publisher import KvPublishers  # noqa: PLC0415 - imports pyzmq
    except ModuleNotFoundError as error:
        raise FleetConfigError(
            "KV events need the package pyzmq: pip install 'endpoint-picker[kv-events]'"
        ) from error
    return KvPublishers(config.endpoints * config.ranks)
