"""The plugin registry: plugin type name to plugin class, and how one is built."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, cast

import msgspec

from epp.config.errors import ConfigError
from epp.scheduling import Plugin

Services = Mapping[str, Callable[[str], Any]]
"""What plugins may ask for by the name of a constructor argument (``rng``, ``clock``): a function
from the plugin's name to the object it gets."""


class PluginRegistry:
    """Plugin classes by their ``type``."""

    def __init__(self, plugins: Iterable[type[Plugin]] = ()) -> None:
        self._by_type: dict[str, type[Plugin]] = {}
        for plugin in plugins:
            self.add(plugin)

    @classmethod
    def from_entry_points(cls) -> "PluginRegistry":
        """Collect every installed plugin listed under the ``epp.plugins`` entry-point group."""
        found = (p for ep in entry_points(group="epp.plugins") for p in ep.load())
        return cls(found)

    def __iter__(self) -> Iterator[type[Plugin]]:
        return iter(self._by_type.values())

    def add(self, plugin: type[Plugin]) -> None:
        """Register ``plugin``.

        Raises:
            ConfigError: Another plugin already uses this type name.
        """
        if (taken := self._by_type.setdefault(plugin.type, plugin)) is not plugin:
            raise ConfigError(f"plugin type {plugin.type!r} is already {taken.__qualname__}")

    def get(self, plugin_type: str) -> type[Plugin]:
        """Return the class of ``plugin_type``.

        Raises:
            ConfigError: There is none; the text names the nearest one.
        """
        try:
            return self._by_type[plugin_type]
        except KeyError:
            near = get_close_matches(plugin_type, self._by_type, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            known = ", ".join(sorted(self._by_type))
            raise ConfigError(
                f"unknown plugin type {plugin_type!r}; {hint}known: {known}"
            ) from None

    def build(
        self,
        plugin_type: str,
        name: str,
        parameters: Mapping[str, Any],
        services: Services | None = None,
    ) -> Plugin:
        """Instantiate a plugin from its configuration entry.

        Raises:
            ConfigError: The type is unknown, or a parameter is unknown or out of range.
        """
        plugin = self.get(plugin_type)
        signature = inspect.signature(plugin, eval_str=True)
        try:
            params = msgspec.convert(parameters, signature.parameters["params"].annotation)
        except msgspec.ValidationError as error:
            raise ConfigError(f"plugin {name!r} ({plugin_type}): {error}") from error
        wanted = {
            key: make(name) for key, make in (services or {}).items() if key in signature.parameters
        }
        try:
            return cast("Callable[..., Plugin]", plugin)(name, params, **wanted)
        except ValueError as error:
            raise ConfigError(f"plugin {name!r} ({plugin_type}): {error}") from error
