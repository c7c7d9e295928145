"""The session plugins and actions by name, and their construction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from epp.flow_control.sessions.actions import Action, Allocate, Preempt, Reclaim
from epp.flow_control.sessions.arguments import (
    ArgumentError,
    Arguments,
    params_of,
    takes_no_arguments,
)
from epp.flow_control.sessions.contracts import PLUGIN_FAULTS
from epp.flow_control.sessions.plugin import PluginError, SessionPlugin

Builder = Callable[..., SessionPlugin]
"""Takes a Struct of parameters (as the annotation says), :class:`Arguments`, or nothing."""

ACTIONS: Mapping[str, Callable[[], Action]] = {
    each.name: each for each in (Allocate, Reclaim, Preempt)
}


class UnknownNameError(ValueError):
    """A plugin or action does not exist; the message suggests a similar name."""


@dataclass(frozen=True, slots=True)
class PluginSetting:
    """The configuration of one plugin."""

    enabled: bool = True
    priority: int = 0
    """Plugins of a higher priority are first, then by name."""
    arguments: Mapping[str, object] = field(default_factory=dict)


class Registry:
    """Builders of session plugins by name."""

    def __init__(self, builders: Mapping[str, Builder] | None = None) -> None:
        self._builders = dict(builders or {})

    @property
    def names(self) -> list[str]:
        """The names of all plugins that can be built."""
        return sorted(self._builders)

    def builder(self, name: str) -> Builder | None:
        """Return the builder of a name; None if there is none."""
        return self._builders.get(name)

    def register(self, name: str, builder: Builder) -> None:
        """Register the builder of plugin ``name``.

        Raises:
            ValueError: The name is taken by another builder.
        """
        if self._builders.setdefault(name, builder) is not builder:
            raise ValueError(f"there is a session plugin {name!r} already; choose another name")

    def joined(self, other: "Registry") -> "Registry":
        """Return a registry with the builders of both.

        Raises:
            ValueError: They have different builders of the same name.
        """
        registry = Registry(self._builders)
        for name, builder in other._builders.items():  # noqa: SLF001 - of its own class
            registry.register(name, builder)
        return registry

    def build(self, settings: Mapping[str, PluginSetting]) -> list[SessionPlugin]:
        """Build the enabled plugins, in the order in which ``on_session_open`` is called.

        Raises:
            UnknownNameError: A plugin does not exist.
            ArgumentError: An argument is invalid or unknown.
            PluginError: A builder fails, or its result is not a named session plugin.
        """
        built = (self.build_one(name, settings[name]) for name in in_order(settings))
        return [plugin for plugin in built if plugin is not None]

    def build_one(self, name: str, setting: PluginSetting) -> SessionPlugin | None:
        """Build one plugin; None if it is not enabled.

        Raises:
            UnknownNameError: The plugin does not exist.
            ArgumentError: An argument is invalid or unknown.
            PluginError: The builder fails, or its result is not a named session plugin.
        """
        builder = self._builders.get(name)
        if builder is None:
            raise UnknownNameError(_unknown("session plugin", name, self.names))
        if not setting.enabled:
            return None
        arguments = Arguments(setting.arguments, plugin=name)
        plugin = _built(name, builder, arguments)
        arguments.check_all_known()
        return plugin


def in_order(settings: Mapping[str, PluginSetting]) -> list[str]:
    """Return the names of plugins in the order in which ``on_session_open`` is called."""
    return sorted(settings, key=lambda name: (-settings[name].priority, name))


def _built(name: str, builder: Builder, arguments: Arguments) -> SessionPlugin:
    params = params_of(builder)
    try:
        plugin: object
        if takes_no_arguments(builder):
            plugin = builder()
        else:
            plugin = builder(arguments if params is None else arguments.as_params(params))
    except ArgumentError:
        raise
    except PLUGIN_FAULTS as error:
        raise PluginError(
            f"session plugin {name!r} cannot be built: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(plugin, SessionPlugin):
        raise PluginError(
            f"session plugin {name!r}: its builder returned {type(plugin).__name__}, which is no"
            " SessionPlugin; inherit from it"
        )
    if not getattr(plugin, "name", ""):
        raise PluginError(
            f"session plugin {name!r}: {type(plugin).__name__} has no `name`; give it one"
        )
    return plugin


REGISTERED: Final = Registry()
"""The builders passed to :func:`register_plugin_builder`."""


def register_plugin_builder(name: str, builder: Builder) -> None:
    """Register the builder of plugin ``name`` for the whole process.

    Raises:
        ValueError: The name is taken by another builder.
    """
    REGISTERED.register(name, builder)


def build_actions(names: Sequence[str]) -> list[Action]:
    """Build the actions, in the order in which they are executed.

    Raises:
        UnknownNameError: An action does not exist.
        ValueError: An action is listed twice.
    """
    for place, name in enumerate(names):
        if name not in ACTIONS:
            raise UnknownNameError(_unknown("action", name, sorted(ACTIONS)))
        if name in names[:place]:
            raise ValueError(f"action {name!r} is listed twice; once is enough")
    return [ACTIONS[name]() for name in names]


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"
    return f"there is no {kind} {name!r}; {meant}"
