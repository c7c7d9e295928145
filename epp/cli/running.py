"""What the long-running commands share: the loop, signals, and errors that a user understands."""

import asyncio
import ctypes
import gc
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import structlog
import typer
import uvloop

from epp.config import ConfigError
from epp.data_layer import DataLayerError
from epp.observability import PortError
from epp.sockets import descriptor_limit, raise_limit
from epp.transport import TransportError

log = structlog.get_logger()

EXPECTED: Final = (ConfigError, DataLayerError, PortError, TransportError)
"""Errors whose text is for the user; anything else is a bug and shows its traceback."""

_MMAP_THRESHOLD: Final = -3
"""``M_MMAP_THRESHOLD`` of malloc.h."""
_LARGE_BLOCK_BYTES: Final = 1 << 20

_COLLECTION_THRESHOLDS: Final = (2_000, 10, 50)
"""The youngest objects are looked at after so many more of them (0.3 ms), the next older ones after
so many of these collections, all after so many of those. Python's defaults are 700, 10, 10."""

_SWITCH_SECONDS: Final = 0.0005

T = TypeVar("T")
R = TypeVar("R")


def run_until_signalled(
    main: Callable[[asyncio.Event], Awaitable[None]],
    *,
    expected: tuple[type[Exception], ...] = EXPECTED,
) -> None:
    """Run ``main`` on uvloop; SIGINT and SIGTERM set the event it is given.

    An expected error ends the process with status 1 and one line on standard error.
    """

    async def signalled() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await main(stop)

    try:
        uvloop.run(signalled())
    except* expected as group:
        errors = [str(error) for error in _leaves(group)]
    else:
        return
    for text in errors:
        print(f"epp: {text}", file=sys.stderr)  # noqa: T201 - a user's error, not a log line
    raise typer.Exit(1)


def tame_garbage_collection() -> None:
    """Have the garbage collector look at what is loaded by now never again, and at the rest rarely.

    A whole collection holds up the loop: with 80 000 objects, as under attack, for 40 ms. Requests
    and connections leave no cycles of references, so there is next to nothing to collect. What is
    exempt and part of a cycle is never freed, so this is called before anything is made that may
    go.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


def hand_over_the_interpreter_sooner() -> None:
    """Let the event loop have the interpreter's lock within 0.5 ms when another thread computes.

    By default it takes 5 ms, after each time that the loop waits for sockets: as long as a page of
    metrics is being made, every request took 5 to 10 ms longer.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def keep_large_blocks_apart() -> None:
    """Make the C library (glibc) return freed blocks of 1 MiB and more to the system.

    By itself it moves that bound up, to 32 MiB, with each block that is freed, and keeps holes
    between blocks: with bodies of 28 MB the process took 790 to 980 MB for 470 MB that were held.
    If the environment sets ``MALLOC_MMAP_THRESHOLD_``, that value stays.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # another C library
    set_option(_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one."""
    before = raise_limit()
    if descriptor_limit().soft != before.soft:
        log.info("descriptor limit raised", soft=before.soft, hard=before.hard)


def fail(text: str, *, status: int = 2) -> NoReturn:
    """End the command with an error, by default one of usage."""
    print(f"epp: {text}", file=sys.stderr)  # noqa: T201 - a user's error, not a log line
    raise typer.Exit(status)


def own_command() -> str:
    """Return the words, quoted for a shell, that call this program again from any folder."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m epp"
    on_path = shutil.which(called.name)
    if on_path is not None and called.exists() and Path(on_path).samefile(called):
        return shlex.quote(called.name)
    return shlex.quote(str(called.absolute()))


def from_flag(flag: str, parse: Callable[[T], R], value: T) -> R:
    """Return ``value`` as ``parse`` reads it.

    Raises:
        ValueError: It is refused; the message begins with ``flag``.
    """
    try:
        return parse(value)
    except (TransportError, ValueError) as error:
        raise ValueError(f"{flag}: {error}") from error


def require_folder(option: str, path: Path) -> None:
    """End the command with a usage error unless ``path`` can be written as a new file."""
    if not path.parent.is_dir():
        fail(f"{option} {path}: there is no folder {path.parent}")


def write_whole(path: Path, text: str) -> None:
    """Write a file that others wait for: it is there whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
