"""Follow files of objectives and rewrites (``--objects FILE|DIR``).

Files are polled every half second. If a file becomes invalid, its last valid objects stay in use,
with one warning per distinct error. If a file is removed from a directory, so are its objects.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from epp.data_layer.errors import ObjectFileError
from epp.data_layer.object_documents import read_objects
from epp.data_layer.objects import Objective, ObjectStore, Rewrite
from epp.inputs import FollowedFile, UnreadableFileError

_log = structlog.get_logger(__name__)

_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


@dataclass(slots=True, eq=False)
class _File:
    """One file, as last seen."""

    file: FollowedFile
    objects: Sequence[Objective | Rewrite] = ()
    """The last valid objects."""
    fault: str | None = None
    """Why the current content is invalid; None if it is valid."""
    logged_fault: str | None = None
    """The fault of the last warning."""
    content: bytes | None = None
    """The content that ``objects`` or ``fault`` result from; None while the file cannot be read."""

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.file.path

    def refresh(self) -> bool:
        """Read the file if it may have changed; return whether its objects have changed."""
        try:
            content = self.file.read_if_changed()
        except UnreadableFileError as error:
            self.content = None
            self.fault = f"objects file {self.path}: {error}"
            return False
        if content is None or content == self.content:
            return False
        self.content = content
        try:
            self.objects = read_objects(self.path, content)
        except ObjectFileError as error:
            self.fault = str(error)
            return False
        self.fault = None
        return True


class ObjectFiles:
    """Reads objectives and rewrites from files and directories into a store.

    Args:
        paths: Files, and directories whose ``*.yaml``, ``*.yml`` and ``*.json`` are read in the
            order of their names.
        poll_seconds: Time between two polls.
    """

    def __init__(self, paths: Sequence[Path], *, poll_seconds: float = 0.5) -> None:
        self._paths = tuple(paths)
        self._poll_seconds = poll_seconds
        self._files: dict[Path, _File] = {}
        self._is_loaded = False

    async def load(self, store: ObjectStore) -> None:
        """Read all files for the first time.

        Raises:
            ObjectFileError: One of them is invalid; the store is unchanged.
        """
        await asyncio.to_thread(self._refresh)
        faults = [file.fault for file in self._files.values() if file.fault]
        if faults:
            raise ObjectFileError("\n".join(faults))
        self._is_loaded = True
        self._publish(store)

    async def run(self, store: ObjectStore) -> None:
        """Load all files, unless :meth:`load` has, and follow them until cancelled.

        Raises:
            ObjectFileError: One of them is invalid at the first load.
        """
        if not self._is_loaded:
            await self.load(store)
        if not self._paths:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(self._poll_seconds)
            changed = await asyncio.to_thread(self._refresh)
            self._log_faults()
            if changed:
                count = self._publish(store)
                _log.info("objects reloaded", objects=count)

    def _refresh(self) -> bool:
        """Poll all files; return whether any object was added, removed or changed."""
        before = self._files
        self._files = {
            path: before.get(path) or _File(FollowedFile(path))
            for given in self._paths
            for path in _files(given, before)
        }
        changed = [file.refresh() for file in self._files.values()]
        return any(changed) or any(
            file.objects for p, file in before.items() if p not in self._files
        )

    def _publish(self, store: ObjectStore) -> int:
        objects = [one for file in self._files.values() for one in file.objects]
        store.replace(objects)
        return len(objects)

    def _log_faults(self) -> None:
        for file in self._files.values():
            if file.fault == file.logged_fault:
                continue
            file.logged_fault = file.fault
            if file.fault is None:
                _log.info("objects file recovered", path=str(file.path))
            else:
                _log.warning(
                    "objects file refused, its last good objects kept",
                    path=str(file.path),
                    error=file.fault,
                )


def _files(given: Path, known: Iterable[Path]) -> list[Path]:
    """Return ``given``, or the manifests in it if it is a directory; skips hidden files."""
    try:
        found = list(given.iterdir())
    except OSError:
        # Not a directory. If it was one before, its known files are polled and reported missing.
        return [*(path for path in known if path.parent == given), given]
    return sorted(
        path
        for path in found
        if path.suffix in _SUFFIXES and not path.name.startswith(".") and _may_be_file(path)
    )


def _may_be_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return True  # no permission: reading it reports the error
