"""Log levels for operators: a debug page, and the call behind ``epp log level``."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, cast, get_args

import msgspec
import structlog

from epp.observability.admin_calls import AdminError
from epp.observability.log_levels import ALL, LEVELS, LogLevel, LogLevels

PATH: Final = "log/level"
"""Path below ``/debug/`` of the page, and of the call with ``level``, ``package``, ``seconds`` and
``undo``."""
DEFAULT_SECONDS: Final = 300.0
MAX_SECONDS: Final = 3600.0

_PARAMETERS: Final = frozenset({"level", "package", "seconds", "undo"})
_LEVELS: Final[tuple[str, ...]] = get_args(LogLevel)

_log = structlog.get_logger(__name__)


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A level that an operator has set."""

    level: LogLevel
    returns_at: float
    """When it returns to the former level, in Unix seconds."""
    returns_in_seconds: float


class LogLevelPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page, and the response to the call."""

    level: LogLevel
    """The current level of all loggers except those of ``packages``."""
    usual_level: LogLevel
    """The level of ``--log-level``."""
    change: LevelChange | None
    """Why ``level`` is not the usual one; None if it is."""
    packages: Mapping[str, LevelChange]
    """Levels of packages or modules."""
    host: str
    process_id: int
    """The process; other replicas have levels of their own."""


class _Timer(NamedTuple):
    returns_at: float
    handle: asyncio.TimerHandle


class LogLevelCalls:
    """Changes log levels for a limited time.

    Args:
        levels: The levels.
        clock: Unix seconds.
    """

    def __init__(
        self, levels: LogLevels = LEVELS, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._levels = levels
        self._clock = clock
        self._timers: dict[str, _Timer] = {}

    def page(self) -> LogLevelPage:
        """Return the levels, and when they return."""
        changes = {
            package: self._change(package, timer) for package, timer in sorted(self._timers.items())
        }
        return LogLevelPage(
            level=self._levels.of(ALL),
            usual_level=self._levels.usual,
            change=changes.pop(ALL, None),
            packages=changes,
            host=socket.gethostname(),
            process_id=os.getpid(),
        )

    def set_level(self, given: Mapping[str, str]) -> LogLevelPage:
        """Set the ``level`` of a ``package``, or of all loggers, for ``seconds``, or undo that.

        A repeated call replaces level and time. Without a package, ``undo`` applies to all changes.

        Raises:
            AdminError: A parameter is invalid.
        """
        if unknown := sorted(given.keys() - _PARAMETERS):
            known = ", ".join(sorted(_PARAMETERS))
            raise _invalid(f"there is no parameter {unknown[0]!r}; there are {known}")
        package, undo = _package(given), _undo(given)
        if undo and given.keys() & {"level", "seconds"}:
            raise _invalid("undo=true excludes level and seconds")
        if undo:
            for each in [package] if package else list(self._timers):
                self._return(each)
            return self.page()
        level, seconds = _level(given), _seconds(given)
        # Before the change: afterwards the line may be below the level.
        _log.warning("log level changed", new_level=level, package=package, seconds=seconds)
        self._forget(package)
        handle = asyncio.get_running_loop().call_later(seconds, self._return, package)
        self._timers[package] = _Timer(self._clock() + seconds, handle)
        self._levels.change(package, level)
        return self.page()

    def _return(self, package: str) -> None:
        if self._forget(package):
            self._levels.restore(package)
            _log.warning("log level returned", new_level=self._levels.of(package), package=package)

    def _forget(self, package: str) -> bool:
        timer = self._timers.pop(package, None)
        if timer is not None:
            timer.handle.cancel()
        return timer is not None

    def _change(self, package: str, timer: _Timer) -> LevelChange:
        return LevelChange(
            level=self._levels.of(package),
            returns_at=timer.returns_at,
            returns_in_seconds=max(0.0, timer.returns_at - self._clock()),
        )


def _invalid(text: str) -> AdminError:
    return AdminError(HTTPStatus.BAD_REQUEST, text)


def _package(given: Mapping[str, str]) -> str:
    package = given.get("package", ALL)
    if package != ALL and package not in sys.modules:
        raise _invalid(
            f"there is no package {package!r}; a logger is named like its module, for example"
            " epp.data_layer or epp_plugins.scorers"
        )
    return package


def _undo(given: Mapping[str, str]) -> bool:
    undo = given.get("undo", "false")
    if undo not in {"true", "false"}:
        raise _invalid(f"undo is {undo!r}, not true or false")
    return undo == "true"


def _level(given: Mapping[str, str]) -> LogLevel:
    level = given.get("level")
    if level is None:
        raise _invalid(f"level is missing; give one of {', '.join(_LEVELS)}")
    if level not in _LEVELS:
        raise _invalid(f"level is {level!r}, not one of {', '.join(_LEVELS)}")
    return cast("LogLevel", level)


def _seconds(given: Mapping[str, str]) -> float:
    text = given.get("seconds")
    if text is None:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= MAX_SECONDS:
        raise _invalid(
            f"seconds is {text!r}, not a positive number of at most {MAX_SECONDS:g}; for longer,"
            " restart with --log-level"
        )
    return seconds
