"""A connection that is replaced when its files change."""

from asyncio import to_thread
from typing import Final

import structlog

from epp.kubernetes.api.connection import Connection
from epp.kubernetes.api.errors import ConfigurationError

_log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 10.0
"""Time between two looks at the files; a call takes the look that is due."""
SETTLE_SECONDS: Final = 1.0
"""The same after a look that has found a change: the next one shows whether it is complete."""


class FollowedConnection:
    """A connection that follows its files: kubeconfig, authority, client certificate and key.

    While the new files are unusable, for example because one of them is missing, the last
    connection stays in use.

    Args:
        connection: The first one.
    """

    def __init__(self, connection: Connection) -> None:
        self.newest = connection
        """The connection in use."""
        self._look_at = connection.clock() + LOOK_SECONDS
        self._problem = ""

    async def current(self) -> Connection:
        """Return the connection for new calls, after a look at the files if one is due."""
        now = self.newest.clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS  # concurrent calls need not look, too
            await to_thread(self._follow)
        return self.newest

    def _follow(self) -> None:
        connection = self.newest
        for files in connection.files:
            files.look()
        news = [files for files in connection.files if files.has_news]
        if not all(files.is_settled for files in news):
            self._look_at = connection.clock() + SETTLE_SECONDS
        elif news:
            self._reload(connection)
            for files in news:
                files.mark_read()

    def _reload(self, connection: Connection) -> None:
        log = _log.bind(source=connection.source)
        try:
            self.newest = connection.reload()
        except ConfigurationError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning(
                    "new credentials for the Kubernetes API are unusable, the last ones stay",
                    problem=self._problem,
                )
            return
        self._problem = ""
        log.info("new credentials for the Kubernetes API")
