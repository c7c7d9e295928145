"""The directory of the workers' sockets.

Each process that uses it holds a shared lock on it. A supervisor that is killed cannot remove its
directory, so each supervisor first removes those that no process has locked.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from epp.workers.errors import WorkerError

_log = structlog.get_logger(__name__)

_PREFIX: Final = "epp-workers-"
_NEW_PREFIX: Final = "new-epp-workers-"
"""Prefix until the lock is held: no other supervisor removes such a directory."""
_MOST_PARENT_BYTES: Final = 55
"""A path of a socket has at most 107 bytes on Linux; the longest here ends with
``/epp-workers-12345678/replicas/0123456789abcdef.sock``."""


_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the directory created in it is private
"""Writable in containers whose root is read-only; used if no other directory is."""


class WorkerSocketFolder:
    """A new directory, which only this user can open. Blocks while the file system does.

    Raises:
        WorkerError: It cannot be made, or its path is too long for sockets.
    """

    def __init__(self) -> None:
        try:
            parent = _parent()
            if len(os.fsencode(parent)) > _MOST_PARENT_BYTES:
                raise WorkerError(
                    f"the path {parent} is too long for the sockets of --workers; set TMPDIR to a"
                    f" directory whose path has at most {_MOST_PARENT_BYTES} bytes"
                )
            _remove_abandoned(parent)
            new = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX, dir=parent))
            self._lock = _locked(new, fcntl.LOCK_SH)
            self.path = new.rename(new.with_name(new.name.replace(_NEW_PREFIX, _PREFIX, 1)))
        except OSError as error:
            raise WorkerError(
                f"--workers needs a directory for sockets, which cannot be made: {error}; set"
                f" TMPDIR to a directory that this user can write to, or make {_MEMORY} writable"
            ) from error

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep other supervisors from removing a directory in the block."""
    descriptor = _locked(folder, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(descriptor)


def _parent() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # none of $TMPDIR, /tmp and others can be written to
        return _MEMORY


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            descriptor = _locked(folder, fcntl.LOCK_EX)
        except OSError:  # in use, not a directory, or removed by another supervisor
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        _log.info("removed the sockets of workers that were killed", folder=str(folder))


def _locked(folder: Path, kind: int) -> int:
    """Return the descriptor of a directory that this process has locked.

    Raises:
        BlockingIOError: Another process holds a lock that excludes this one.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
