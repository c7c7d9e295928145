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

_log = structlog.get_logger(__name__)

_PREFIX: Final = "epp-workers-"
_NEW_PREFIX: Final = "new-epp-workers-"
"""Prefix until the lock is held: no other supervisor removes such a directory."""


class SocketFolder:
    """A new directory, which only this user can open. Blocks while the file system does."""

    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        new = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX))
        self._lock = _locked(new, fcntl.LOCK_SH)
        self.path = new.rename(new.with_name(new.name.replace(_NEW_PREFIX, _PREFIX, 1)))

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
