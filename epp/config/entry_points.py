"""Plugins that installed packages list under an entry-point group."""

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class EntryPointPlugins(NamedTuple, Generic[T]):
    """The plugins of one entry point."""

    package: str
    """Name of the distribution; "" if it is unknown."""
    entry_point: str
    """The ``module:attribute`` that lists them."""
    plugins: T


def installed_plugins(group: str, read: Callable[[Any], T]) -> Iterator[EntryPointPlugins[T]]:
    """Load the entry points of ``group``; blocks.

    A package that cannot be imported is logged and left out.

    Args:
        group: The entry-point group.
        read: Copies the listed plugins, for example ``tuple``; may raise anything.
    """
    for each in entry_points(group=group):
        package = each.dist.name if each.dist is not None else ""
        try:
            plugins = read(each.load())
        except Exception:
            _log.exception(
                "plugins of an installed package left out, it cannot be imported",
                package=package,
                group=group,
                entry_point=each.value,
            )
            continue
        yield EntryPointPlugins(package, each.value, plugins)
