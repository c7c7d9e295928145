"""Helpers for long-running commands: event loop, signals, and error messages for users."""

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
from epp.request_control.force_keys import ForceKeyError
from epp.sockets import descriptor_limit, raise_limit
from epp.tracing import TracingError
from epp.transport import TransportError

log = structlog.get_logger()

EXPECTED: Final = (
    ConfigError,
    DataLayerError,
    ForceKeyError,
    PortError,
    TracingError,
    TransportError,
)
"""Errors whose text is for the user; anything else is a bug and shows its traceback."""

_MMAP_THRESHOLD: Final = -3
"""``M_MMAP_THRESHOLD`` of malloc.h."""
_LARGE_BLOCK_BYTES: Final = 1 << 20

_COLLECTION_THRESHOLDS: Final = (2_000, 10, 50)
"""Arguments of ``gc.set_threshold``; a collection of the youngest objects then takes 0.3 ms.
Python's defaults are 700, 10, 10."""

_SWITCH_SECONDS: Final = 0.0005

T = TypeVar("T")
R = TypeVar("R")


def run_until_signalled(
    main: Callable[[asyncio.Event], Awaitable[None]],
    *,
    expected: tuple[type[Exception], ...] = EXPECTED,
) -> None:
    """Run ``main`` on uvloop; SIGINT and SIGTERM set the event that it gets.

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
        # Several tasks may have failed for the same reason, such as an unreadable kubeconfig.
        errors = dict.fromkeys(str(error) for error in _leaves(group))
    else:
        return
    for text in errors:
        print(f"epp: {text}", file=sys.stderr)  # noqa: T201 - a user's error, not a log line
    raise typer.Exit(1)


def tame_garbage_collection() -> None:
    """Exempt all existing objects from garbage collection, and collect others rarely.

    A full collection blocks the event loop: for 40 ms with 80 000 objects, as under attack.
    Requests and connections leave no reference cycles, so there is almost nothing to collect.
    Exempt objects in a cycle are never freed, so call this before creating objects of limited
    lifetime.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


def hand_over_the_interpreter_sooner() -> None:
    """Set the GIL switch interval to 0.5 ms, so that the event loop gets the GIL sooner.

    With the default of 5 ms, requests took 5 to 10 ms longer while another thread rendered a
    metrics page, because the loop must get the GIL again whenever it has waited for sockets.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def keep_large_blocks_apart() -> None:
    """Make glibc return freed blocks of 1 MiB and more to the system.

    By default glibc raises that threshold, up to 32 MiB, when such blocks are freed, and fragments:
    with bodies of 28 MB the process used 790 to 980 MB for 470 MB of data. A value of
    ``MALLOC_MMAP_THRESHOLD_`` in the environment takes precedence.
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
    """Exit with an error message; the default status is that of usage errors."""
    print(f"epp: {text}", file=sys.stderr)  # noqa: T201 - a user's error, not a log line
    raise typer.Exit(status)


def own_command() -> str:
    """Return a shell command that runs this program from any directory."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m epp"
    on_path = shutil.which(called.name)
    if on_path is not None and called.exists() and Path(on_path).samefile(called):
        return shlex.quote(called.name)
    return shlex.quote(str(called.absolute()))


def from_flag(flag: str, parse: Callable[[T], R], value: T) -> R:
    """Return ``parse(value)``.

    Raises:
        ValueError: The value is invalid; the message begins with ``flag``.
    """
    try:
        return parse(value)
    except (TransportError, ValueError) as error:
        raise ValueError(f"{flag}: {error}") from error


def require_folder(option: str, path: Path) -> None:
    """Exit with a usage error unless the directory of ``path`` exists."""
    if not path.parent.is_dir():
        fail(f"{option} {path}: there is no folder {path.parent}")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, for readers that wait for it to appear."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
