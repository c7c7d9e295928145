"""Detect changes of a followed file and read it.

Everything here blocks: call it through ``asyncio.to_thread``.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from epp.config.errors import why_unreadable
from epp.data_layer.errors import DataLayerError

MAX_FILE_BYTES: Final = 1024 * 1024
"""The Go EPP's limit for an endpoints file."""


class UnreadableFileError(DataLayerError):
    """A file cannot be read; the text gives the reason but not the path."""


@dataclass(frozen=True, slots=True)
class FileState:
    """Metadata that identifies a version of a file without reading it."""

    device: int
    inode: int
    modified_ns: int
    size_bytes: int

    @classmethod
    def of(cls, stat: os.stat_result) -> "FileState":
        """Return the state from the ``stat`` result of the file itself, not of a link to it."""
        return cls(stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def look(path: Path) -> FileState:
    """Return the current state of the file; follows links, so that a swapped link is a change.

    Raises:
        UnreadableFileError: Its metadata cannot be read.
    """
    try:
        return FileState.of(path.stat())
    except OSError as error:
        raise _unreadable(error) from error


def read(path: Path) -> tuple[FileState, bytes]:
    """Return the state of the file before it was read, and its content.

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
