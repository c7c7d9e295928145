"""Listening on a Unix socket file, for a gateway on the same host.

The methods block briefly: call them through ``asyncio.to_thread``.
"""

import errno
import os
import socket
import stat
from pathlib import Path

from epp.transport.errors import ListenError

REMEDY = "the folder must exist and be writable, the path shorter than 108 bytes"
MODE = 0o660
"""Owner and group may connect, others may not."""


class SocketFile:
    """A socket file that this process creates and removes."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self._path = path
        self._identity: tuple[int, ...] | None = None

    def bind(self) -> socket.socket:
        """Return a socket that is bound to the path but does not listen yet.

        Raises:
            ListenError: The path is in use, or cannot be created.
        """
        self.clear()
        made = socket.socket(socket.AF_UNIX)
        try:
            made.bind(str(self._path))
            self.own()
        except OSError as error:
            made.close()
            raise self._error(error) from error
        return made

    def clear(self) -> None:
        """Remove the socket file of a process that has died.

        Raises:
            ListenError: A process listens there, or the file is not a socket.
        """
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(error) from error
        if not stat.S_ISSOCK(mode):
            raise ListenError(
                self.address, "a file that is not a socket exists", "give another --listen"
            )
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a full backlog proves a listener, too
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink(missing_ok=True)
            except BlockingIOError:
                raise self._in_use() from None
            except OSError as error:
                raise self._error(error) from error
            else:
                raise self._in_use()

    def own(self) -> None:
        """Set the mode of the bound socket file, and remember its identity."""
        self._path.chmod(MODE)
        self._identity = _identity(self._path.lstat())

    def remove(self) -> None:
        """Remove the file, unless it has been replaced by another one."""
        try:
            found = self._path.lstat()
        except OSError:
            return
        if _identity(found) == self._identity:
            self._path.unlink(missing_ok=True)
        self._identity = None

    def _in_use(self) -> ListenError:
        return ListenError(
            self.address, "another process is listening there", "stop it, or give another --listen"
        )

    def _error(self, error: OSError) -> ListenError:
        # "AF_UNIX path too long" has no errno; the kernel's limit is 107 bytes.
        code = error.errno or 0
        reason = os.strerror(code) if code in errno.errorcode else str(error)
        return ListenError(self.address, reason, REMEDY)


def _identity(found: os.stat_result) -> tuple[int, ...]:
    # The inode number of a removed file is reused at once: the time tells them apart.
    return found.st_dev, found.st_ino, found.st_ctime_ns
