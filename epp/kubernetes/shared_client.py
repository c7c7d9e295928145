"""One client of the API server for all parts of the process that call it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from epp.kubernetes.api import ApiClient, Connection, load_connection


class SharedClient:
    """Opens a client for its first user, and closes it after the last.

    Args:
        connect: Finds the API server; blocks.
        relay: Socket file of a relay that takes lists and watches; None to make them directly.
    """

    def __init__(
        self, connect: Callable[[], Connection] = load_connection, *, relay: Path | None = None
    ) -> None:
        self._connect = connect
        self._relay = relay
        self._client: ApiClient | None = None
        self._users = 0
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[ApiClient]:
        """Provide the client within the block.

        Raises:
            ConfigurationError: There is no usable configuration of the API server.
        """
        async with self._opening:
            if self._client is None:
                connection = await asyncio.to_thread(self._connect)
                self._client = ApiClient(connection, relay=self._relay)
            client = self._client
            self._users += 1
        try:
            yield client
        finally:
            self._users -= 1
            if not self._users:
                self._client = None
                await client.close()
