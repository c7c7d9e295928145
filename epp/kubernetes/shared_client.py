"""One client of the API server for all parts of the process that call it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from epp.kubernetes.api import ApiClient, Connection, load_connection


class SharedClient:
    """Opens a client for its first user, and closes it after the last.

    Args:
        connect: Finds the API server; blocks.
    """

    def __init__(self, connect: Callable[[], Connection] = load_connection) -> None:
        self._connect = connect
        self._client: ApiClient | None = None
        self._users = 0
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[ApiClient]:
        """Provide the client within the block.

        Raises:
            ConfigurationError: The API server, or how to authenticate, cannot be found.
        """
        async with self._opening:
            if self._client is None:
                self._client = ApiClient(await asyncio.to_thread(self._connect))
            client = self._client
            self._users += 1
        try:
            yield client
        finally:
            self._users -= 1
            if not self._users:
                self._client = None
                await client.close()
