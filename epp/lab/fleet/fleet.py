"""N fake servers in one process, started and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from epp.lab.fleet.config import FleetConfig
from epp.lab.fleet.server import FakeServer


class Fleet:
    """A fleet of fake vLLM servers; an async context manager, running inside its block."""

    def __init__(self, config: FleetConfig) -> None:
        self.config = config
        """The configuration."""
        self.servers = tuple(FakeServer(config, index) for index in range(config.endpoints))
        """The servers, by index."""

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

    async def start(self) -> None:
        """Start all servers, or none.

        Raises:
            PortTakenError: A port is in use.
        """
        try:
            for server in self.servers:
                await server.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop all servers and abort their requests."""
        for server in self.servers:
            await server.close()

    async def run(
        self, stop: asyncio.Event, *, ready: Callable[[Fleet], None] | None = None
    ) -> None:
        """Serve until `stop` is set; call `ready` when all servers listen."""
        async with self:
            if ready is not None:
                ready(self)
            await stop.wait()

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


async def serve(
    config: FleetConfig, *, ready: Callable[[Fleet], None], stop: asyncio.Event
) -> None:
    """Run a fleet until `stop` is set; call `ready` when all servers listen.

    Raises:
        PortTakenError: a port is in use.
    """
    await Fleet(config).run(stop, ready=ready)
