"""Sockets to listen on that asyncio does not make by itself.

A socket that is a file is for a gateway on the same host, and nobody else. What it does blocks for
a moment: call it through ``asyncio.to_thread``.
"""

import errno
import os
import socket
import stat
from pathlib import Path

from epp.transport.errors import ListenError

REMEDY = "the folder must exist and be writable, the path shorter than 108 bytes"
MODE = 0o660
"""The owner and the group may connect, others not."""


class SocketFile:
    """One path, taken to listen there and given back."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self._path = path
        self._identity: tuple[int, ...] | None = None

    def bind(self) -> socket.socket:
        """Return a socket that is bound there, and does not listen yet.

        Raises:
            ListenError: The path is in use, or cannot be had.
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
        """Remove what a process that has died left there.

        Raises:
            ListenError: Somebody listens there, or it is no socket.
        """
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(error) from error
        if not stat.S_ISSOCK(mode):
            raise ListenError(self.address, "a file that is no socket", "give another --listen")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a full backlog is an answer, too
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
        """Set the mode of the socket that is bound there, and remember it as ours."""
        self._path.chmod(MODE)
        self._identity = _identity(self._path.lstat())

    def remove(self) -> None:
        """Remove the file, if it is still ours."""
        try:
            found = self._path.lstat()
        except OSError:
            return
        if _identity(found) == self._identity:
            self._path.unlink(missing_ok=True)
        self._identity = None

    def _in_use(self) -> ListenError:
        return ListenError(
            self.address,
            "another process is listening there",
            "stop it, or give another --listen",
        )

    def _error(self, error: OSError) -> ListenError:
        # "AF_UNIX path too long" comes without a number; the kernel takes 107 bytes.
        code = error.errno or 0
        reason = os.strerror(code) if code in errno.errorcode else str(error)
        return ListenError(
            self.address,
            reason,
            REMEDY,
        )


def _identity(found: os.stat_result) -> tuple[int, ...]:
    # With the time: the number of a removed file is given to the next one at once.
    return found.st_dev, found.st_ino, found.st_ctime_ns
