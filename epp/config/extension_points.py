"""Discovery of the extension points of every layer.

Every abstract subclass of :class:`Plugin` in a module named ``plugins`` is an extension point, in
whichever layer. That avoids a central list and imports of the layers above.
"""

import inspect

from epp.scheduling import Plugin


def extension_points() -> list[type[Plugin]]:
    """Return the extension points of all imported modules, sorted by name."""
    found: set[type[Plugin]] = set()
    waiting: list[type[Plugin]] = [Plugin]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if _is_extension_point(each):
                found.add(each)
    return sorted(found, key=lambda point: point.__name__)


def extension_points_of(plugin: type) -> list[type[Plugin]]:
    """Return the extension points that a class inherits from, the most specific first."""
    return [each for each in plugin.__mro__ if _is_extension_point(each)]


def import_name(point: type[Plugin]) -> str:
    """Return the public dotted name from which plugins import an extension point."""
    package = point.__module__
    if package == "epp.scheduling.plugins":
        package = "epp.scheduling"
    return f"{package}.{point.__name__}"


def _is_extension_point(cls: type) -> bool:
    return declares_contracts(cls) and inspect.isabstract(cls)


def declares_contracts(cls: type) -> bool:
    """Return whether the public methods of a class are a contract for its subclasses."""
    return issubclass(cls, Plugin) and cls is not Plugin and cls.__module__.endswith(".plugins")
