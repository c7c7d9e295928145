"""Log levels, which may change while the process runs.

structlog fixes a logger's level in its class. So each logger name has its own class here, whose
methods are replaced when the level changes: a call below the level costs as little as before. Code
that prepares the fields of a line asks a :class:`LevelSwitch` first.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, Literal, cast
from weakref import WeakSet

import structlog
from structlog import make_filtering_bound_logger
from structlog.typing import BindableLogger

LogLevel = Literal["debug", "info", "warning", "error"]

ALL: Final = ""
"""The package that contains every logger."""
_RANKS: Final[dict[LogLevel, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class LogLevels:
    """The levels of all loggers of the process.

    A logger has the level of the innermost package that has one: the name of a logger is that of
    its module.
    """

    def __init__(self) -> None:
        self.usual: LogLevel = "info"
        """The level without changes."""
        self._changed: dict[str, LogLevel] = {}
        self._classes: dict[str, type[BindableLogger]] = {}
        self._switches: WeakSet[LevelSwitch] = WeakSet()

    def start(self, usual: LogLevel) -> None:
        """Set the level of every logger."""
        self.usual = usual
        self._changed.clear()
        self._apply()

    def change(self, package: str, level: LogLevel) -> None:
        """Set the level of the loggers of ``package`` until :meth:`restore`."""
        self._changed[package] = level
        self._apply()

    def restore(self, package: str) -> None:
        """Undo :meth:`change`."""
        self._changed.pop(package, None)
        self._apply()

    def of(self, logger: str) -> LogLevel:
        """Return the lowest level that this logger writes."""
        package = logger
        while package != ALL:
            if package in self._changed:
                return self._changed[package]
            package = package.rpartition(".")[0]
        return self._changed.get(ALL, self.usual)

    def logger_class(self, name: str) -> type[BindableLogger]:
        """Return the class of the loggers of this name; any thread may call it."""
        found = self._classes.get(name)
        if found is None:
            base = make_filtering_bound_logger(logging.NOTSET)
            found = self._classes.setdefault(name, type("Logger", (base,), {}))
            _set_level(found, self.of(name))
        return found

    def watch(self, switch: "LevelSwitch") -> None:
        """Keep ``switch`` up to date while it exists."""
        self._switches.add(switch)
        switch.update(self.of(switch.logger))

    def _apply(self) -> None:
        for name, each in list(self._classes.items()):
            _set_level(each, self.of(name))
        for switch in list(self._switches):
            switch.update(self.of(switch.logger))


def _set_level(logger_class: type[BindableLogger], level: LogLevel) -> None:
    for name, member in vars(make_filtering_bound_logger(level)).items():
        if not name.startswith("__"):
            setattr(logger_class, name, member)


class LevelSwitch:
    """Whether one logger writes lines of one level; a base class.

    Args:
        logger: Name of the logger.
        level: The level.
    """

    __slots__ = ("__weakref__", "_rank", "enabled", "log", "logger")

    def __init__(self, logger: str, level: LogLevel) -> None:
        self.logger = logger
        self.log: Any = structlog.get_logger(logger)
        """The logger."""
        self._rank = _RANKS[level]
        self.enabled = False
        """Whether lines are written; check it before creating the fields."""
        LEVELS.watch(self)

    def update(self, lowest: LogLevel) -> None:
        """Note that ``lowest`` is the lowest level that is written."""
        is_written = self._rank >= _RANKS[lowest]
        # A program that configures structlog itself may write less.
        self.enabled = is_written and bool(self.log.is_enabled_for(self._rank))


def switched(logger: Any, **details: Any) -> BindableLogger:  # noqa: ANN401 - structlog's
    """Return a logger that follows :data:`LEVELS`; structlog's ``wrapper_class``."""
    logger_class = cast("Callable[..., BindableLogger]", LEVELS.logger_class(logger.name))
    return logger_class(logger, **details)


LEVELS: Final = LogLevels()
"""The levels of this process; global, like structlog's configuration."""
