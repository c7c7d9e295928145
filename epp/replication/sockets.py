"""Messages between replicas of one host, over unix sockets in a directory.

Each replica listens on a socket there, named by the hash of its name, and connects to those of the
others, which it finds by listing the directory. A connection carries messages in one direction:
from the one that connected. So the end of a replica is noticed at once, as the end of its
connections. A socket that refuses connections was left by a killed replica, and is removed.
"""

import asyncio
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from xxhash import xxh3_64_hexdigest

from epp.replication.carrier import Carrier, Inbox
from epp.replication.errors import ReplicaStateError
from epp.replication.reach import ReachLog
from epp.replication.socket_connections import Incoming, Outgoing

_log = structlog.get_logger(__name__)

SCAN_SECONDS: Final = 0.25
"""Time between two scans of the directory."""
_RETRY_SECONDS: Final = 1.0
"""Pause before the directory is used again after a failure."""
_SUFFIX: Final = ".sock"
_MOST_PATH_BYTES: Final = 107
"""Longest path of a unix socket on Linux, without the final zero byte."""


class SocketCarrier(Carrier):
    """Carries messages over unix sockets.

    Args:
        folder: The directory; created, for this user only, if it is missing.
        name: Name of this replica.

    Raises:
        ReplicaStateError: The directory cannot be used.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._path = folder / _file_of(name)
        self._links: dict[str, Outgoing] = {}
        """Connections to other replicas, by file name."""
        self._incoming: dict[str, Incoming] = {}
        """The newest connection of each other replica, by its name."""
        self._listens = False
        self._reach = ReachLog()
        _prepare(folder, self._path)

    @property
    def is_connected(self) -> bool:
        return self._listens

    def send(self, message: bytes, recipient: str = "") -> bool:
        links = tuple(self._links.values())
        if recipient:
            link = self._links.get(_file_of(recipient))
            links = () if link is None else (link,)
        queued = [link.send(message) for link in links]  # to all, even if one is full
        return all(queued)

    async def run(self, inbox: Inbox) -> None:
        while True:
            try:
                await self._serve(inbox)
            except (OSError, ReplicaStateError) as error:
                self._reach.lost(str(error), directory=str(self._folder))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _serve(self, inbox: Inbox) -> None:
        """Listen, and connect to the other replicas, until that fails.

        Raises:
            OSError: The directory cannot be used.
            ReplicaStateError: Other users can write to it.
        """
        server = await self._listen(inbox)
        self._listens = True
        self._reach.regained(directory=str(self._folder))
        try:
            while True:
                entries = await asyncio.to_thread(os.listdir, self._folder)
                if self._path.name not in entries:
                    # Removed by the end of an earlier process of this name, or by a replica that
                    # found that process's socket just before it was replaced.
                    _log.info("socket of this replica is missing, listening again")
                    server.close()
                    server = await self._listen(inbox)
                if await self._connect(entries):
                    inbox.joined()
                await asyncio.sleep(SCAN_SECONDS)
        finally:
            self._listens = False
            server.close()
            for link in tuple(self._links.values()):
                link.close()
            for connection in tuple(self._incoming.values()):
                connection.close()
            with suppress(OSError):
                await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def _listen(self, inbox: Inbox) -> asyncio.Server:
        # The directory may have been removed since the start, such as one below /tmp.
        await asyncio.to_thread(_prepare, self._folder, self._path)
        # An earlier process of this name may have left it.
        await asyncio.to_thread(self._path.unlink, missing_ok=True)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Incoming(inbox, self._incoming), str(self._path)
        )
        await asyncio.to_thread(self._path.chmod, 0o600)
        return server

    async def _connect(self, entries: Iterable[str]) -> bool:
        """Connect to the replicas among ``entries`` that are new; return whether there are any."""
        has_new = False
        for entry in entries:
            path = self._folder / entry
            if not entry.endswith(_SUFFIX) or path == self._path or entry in self._links:
                continue
            try:
                made = partial(self._links.__setitem__, entry)
                lost = partial(self._links.pop, entry, None)
                await asyncio.get_running_loop().create_unix_connection(
                    partial(Outgoing, self._name, made, lost), str(path)
                )
                has_new = True
            except ConnectionRefusedError:
                await asyncio.to_thread(path.unlink, missing_ok=True)
            except OSError as error:
                _log.debug("replica cannot be reached", socket=str(path), error=str(error))
        return has_new


def _file_of(name: str) -> str:
    return xxh3_64_hexdigest(name.encode()) + _SUFFIX


def _prepare(folder: Path, path: Path) -> None:
    """Create the directory, and check that no other user can put sockets into it."""
    if len(os.fsencode(path)) > _MOST_PATH_BYTES:
        raise ReplicaStateError(
            f"--replica-state: the path {folder} is too long for sockets; use one of at most"
            f" {_MOST_PATH_BYTES - len(path.name) - 1} bytes"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ReplicaStateError(
            f"--replica-state: {folder} cannot be made: {error.strerror}"
        ) from error
    is_own = status.st_uid == os.geteuid()
    if not is_own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ReplicaStateError(
            f"--replica-state: other users can write to {folder}; use a directory that belongs to"
            f" the user {os.geteuid()} and has mode 0700: chmod 0700 {folder}"
        )
