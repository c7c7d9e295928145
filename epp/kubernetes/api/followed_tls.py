"""The TLS context of a connection, made anew when the files of its certificates change."""

import ssl
from asyncio import to_thread
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog
from lightkube.core.exceptions import ConfigError

_log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 10.0
"""How often the files are read, if calls are made."""


class FollowedTls:
    """A TLS context that follows its files: the authority, the client's certificate and its key.

    While the new files are unusable, for example because the key has not been written yet, the last
    context stays in use.

    Args:
        paths: The files; they are read now, which blocks.
        make: Makes a context from them; blocks.
        clock: Monotonic clock in seconds.

    Raises:
        OSError: A file cannot be read, or has no certificate.
        ConfigError: The configuration of the client is unusable.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        make: Callable[[], ssl.SSLContext],
        clock: Callable[[], float],
    ) -> None:
        self._paths = tuple(paths)
        self._log = _log.bind(files=[str(path) for path in paths])
        self._make = make
        self._clock = clock
        self._contents = self._read()
        self._checked_at = clock()
        self._problem = ""
        self.context = make()
        """The context in use."""

    async def current(self) -> ssl.SSLContext:
        """Return the context for new connections, after a look at the files if one is due."""
        if self._paths and self._clock() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._clock()  # concurrent calls need not look, too
            await to_thread(self._follow)
        return self.context

    def _follow(self) -> None:
        try:
            contents = self._read()
            if contents == self._contents:
                return
            self.context = self._make()
        except (ConfigError, OSError, ValueError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._log.warning(
                    "new certificates for the Kubernetes API are unusable, the last ones stay",
                    problem=self._problem,
                )
            return
        self._contents, self._problem = contents, ""
        self._log.info("new certificates for the Kubernetes API")

    def _read(self) -> tuple[bytes, ...]:
        return tuple(path.read_bytes() for path in self._paths)
