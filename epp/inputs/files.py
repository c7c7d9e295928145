"""Detects changes of files.

:class:`FollowedFile` polls the metadata of one file and reads it only if they differ.
:class:`SettledChanges` hashes a set of small files. Both detect edits in place, atomic renames and
the link swap of a mounted ConfigMap.

Everything here blocks: call it through ``asyncio.to_thread``.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

MAX_FILE_BYTES: Final = 1024 * 1024
"""The Go EPP's limit for an endpoints file."""


def of_worker(path: Path, index: int) -> Path:
    """Return a worker's own path, made from the one for all: ``epp-0.sock`` for ``epp.sock``."""
    return path.with_name(f"{path.stem}-{index}{path.suffix}")


class UnreadableFileError(Exception):
    """A file cannot be read; the text gives the reason but not the path."""


def why_unreadable(error: OSError | ValueError) -> str:
    """Return why a file cannot be read, without the error number and the path."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return reason[:1].lower() + reason[1:]


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


class FollowedFile:
    """Reads one file again when it has changed.

    Args:
        path: The file, or a link to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: FileState | None = None
        self._settled = False

    def read_if_changed(self) -> bytes | None:
        """Return the content if the file may have changed since the last call, else None.

        After an error, the next call reads the file.

        Raises:
            UnreadableFileError: It cannot be read or is larger than ``MAX_FILE_BYTES``.
        """
        try:
            if self._settled and look(self.path) == self._state:
                return None
            state, content = read(self.path)
        except UnreadableFileError:
            self._settled = False
            raise
        # After a change, read the file again at the next call: a second write within the same
        # clock tick (4 ms) leaves the modification time, and perhaps the size, unchanged.
        self._settled = state == self._state
        self._state = state
        return content


class SettledChanges:
    """Detects changes of a set of files, once two polls in a row find the same content.

    So a half-written file is not read, and two edits within one tick of the file system's clock are
    detected. The files are hashed; two polls of small files a second cost less than a scrape.
    """

    def __init__(self) -> None:
        self._seen = self._handled = ""

    def poll(self, paths: Iterable[Path]) -> bool:
        """Return whether the files have settled since the last :meth:`mark_handled`.

        The first two equal polls are a change: the files may have changed since they were loaded.
        An error that prevents reading a file counts as its content.
        """
        now = _fingerprint(paths)
        is_settled = now == self._seen
        self._seen = now
        return is_settled and now != self._handled

    @property
    def is_unhandled(self) -> bool:
        """Whether the last poll has found content that has not been handled, settled or not."""
        return self._seen != self._handled

    def mark_handled(self) -> None:
        """Record that the content found by the last poll has been handled."""
        self._handled = self._seen

    def mark_read(self, paths: Iterable[Path]) -> None:
        """Record that the files have been read since the last poll; call it right after.

        If they have changed since that poll, it is unknown which content was read: the next content
        that settles counts as a change, even if it is that of the last poll.
        """
        self._handled = self._seen if _fingerprint(paths) == self._seen else ""


def _fingerprint(paths: Iterable[Path]) -> str:
    digest = sha256()
    for path in sorted(paths):
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            content = f"cannot be read: {error}".encode()
        digest.update(f"{path} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()
