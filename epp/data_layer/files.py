"""Files that are followed while they change: what tells one version from the next, and reading.

All of it blocks, so call it through ``asyncio.to_thread``.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from epp.config.errors import why_unreadable
from epp.data_layer.errors import DataLayerError

MAX_FILE_BYTES: Final = 1024 * 1024
"""The reference's limit of an endpoints file."""


class UnreadableFileError(DataLayerError):
    """A file cannot be read; the text says why but not which file."""


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells one version of a file from the next, without reading it."""

    device: int
    inode: int
    modified_ns: int
    size_bytes: int

    @classmethod
    def of(cls, stat: os.stat_result) -> "FileState":
        """Take the state out of what ``stat`` says of the file (not of a link to it)."""
        return cls(stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def look(path: Path) -> FileState:
    """Return the present state of the file; links are followed, so a swapped one shows.

    Raises:
        UnreadableFileError: It cannot be seen.
    """
    try:
        return FileState.of(path.stat())
    except OSError as error:
        raise _unreadable(error) from error


def read(path: Path) -> tuple[FileState, bytes]:
    """Return the content of the file and the state it had before it was read.

    Raises:
        UnreadableFileError: It cannot be read or is larger than ``MAX_FILE_BYTES``.
    """
    try:
        with path.open("rb") as file:
            state = FileState.of(os.fstat(file.fileno()))
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(error) from error
    if len(content) > MAX_FILE_BYTES:
        raise UnreadableFileError("larger than the limit of 1 MiB")
    return state, content


def _unreadable(error: OSError) -> UnreadableFileError:
    return UnreadableFileError(f"cannot be read: {why_unreadable(error)}")
