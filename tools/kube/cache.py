"""Folders in the user's cache that are made once."""

import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.kube.go import BuildError, say


def cache(environment: Mapping[str, str]) -> Path:
    """Return the parent of these folders."""
    root = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root).absolute() / "endpoint-picker" / "kube"


def make_once(target: Path, fill: Callable[[Path, Path], None]) -> Path:
    """Return the folder ``target``; if it does not exist, make it with ``fill(scratch, result)``.

    A second process that makes it at the same time waits for the first.

    Raises:
        BuildError: The cache cannot be written, or ``fill`` failed.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"{error}: set XDG_CACHE_HOME to a folder that can be written") from error
    with _lock(target.with_name(target.name + ".lock")):
        if target.is_dir():
            return target
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)  # left by a build that was killed
        try:
            result = partial / "bin"
            result.mkdir(parents=True)
            fill(partial, result)
            result.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process builds into {path.parent}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
