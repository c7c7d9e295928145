"""Load a configuration: parse YAML, apply the schema, run the checks that a schema cannot express.

All problems are reported at once, with line and column. Plugin types and parameters are checked by
the graph builder. A file that is refused here never gets that far; pass ``inspect`` to report those
problems, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from epp.config.checks import faults, is_gate_on, warnings
from epp.config.document import MAX_BYTES, Document, parse
from epp.config.errors import ConfigError, ConfigProblem, in_order
from epp.config.fault_texts import Fault
from epp.config.schema import (
    DEFAULT_CONFIG,
    KIND,
    ConfigFile,
    FlowControlEntry,
    PluginEntry,
    RequestHandlerEntry,
)
from epp.config.structs import read
from epp.config.supported import OLD_TYPES
from epp.inputs import why_unreadable

Inspect = Callable[[str, Mapping[str, Any]], Iterable[Fault]]
"""Returns the faults of a plugin's type and parameters; paths are relative to the plugin's entry
(``type``, ``parameters.label``)."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration that passed every check that does not need its plugins."""

    file: ConfigFile
    """Normalized: every plugin has a name, deprecated fields are moved to their successors."""
    source: str
    """For messages: a path, ``--config-text`` or ``built-in default``."""
    directory: Path
    """Base of relative paths of plugin files."""
    digest: str
    """SHA-256 of the text."""
    warnings: tuple[ConfigProblem, ...]
    """Fields that are deprecated or have no effect."""
    document: Document
    """Positions of the values."""
    text: str
    """The text itself."""

    def has_gate(self, name: str) -> bool:
        """Return whether a feature gate is on."""
        return is_gate_on(name, self.file.feature_gates)

    def problem(self, path: str, message: str, *, on_key: bool = False) -> ConfigProblem:
        """Return a problem of the field at ``path`` with its line and column.

        If the field is absent, the position is that of the nearest enclosing field.

        Args:
            path: Such as ``plugins[2].parameters.label``.
            message: What is wrong and how to fix it.
            on_key: Point at the field's key instead of at its value.
        """
        return self.document.problem(path, message, on_key=on_key)


def load_file(path: Path, *, inspect: Inspect | None = None) -> LoadedConfig:
    """Read a configuration file.

    Raises:
        ConfigError: It cannot be read, or :func:`load_text` refuses it.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError) as error:
        reason = why_unreadable(error)
        raise ConfigError(f"cannot read the configuration file {path}: {reason}") from error
    return load_text(text, str(path), path.parent, inspect=inspect)


def load_text(
    text: str, source: str, directory: Path = Path(), *, inspect: Inspect | None = None
) -> LoadedConfig:
    """Parse and check a configuration.

    Args:
        text: YAML or JSON.
        source: Origin, for messages.
        directory: Base of relative paths of plugin files.
        inspect: Checks the plugins of a file that is refused for another reason.

    Raises:
        ConfigError: It is invalid; lists all problems in file order.
    """
    document = parse(text)
    if not document.is_whole:
        raise ConfigError.of(source, document.problems)
    value = document.root.value
    if not isinstance(value, dict):
        message = f"expected a mapping with `kind: {KIND}` at the top level"
        raise ConfigError.of(source, [*document.problems, document.problem("", message)])
    reading = read(value, ConfigFile)
    found = [*reading.faults, *faults(value, reading.references)]
    problems = [*document.problems, *_placed(document, found)]
    if problems or reading.value is None:
        if inspect is not None:
            problems += _placed(document, _plugin_faults(value, inspect))
        raise ConfigError.of(source, in_order(problems))
    return LoadedConfig(
        file=_defaulted(reading.value),
        source=source,
        directory=directory,
        digest=sha256(text.encode()).hexdigest(),
        warnings=tuple(_placed(document, warnings(value))),
        document=document,
        text=text,
    )


def default_config() -> LoadedConfig:
    """Return the configuration that is used if none is given."""
    return load_text(DEFAULT_CONFIG, "built-in default")


def _placed(document: Document, found: Iterable[Fault]) -> list[ConfigProblem]:
    return [document.problem(each.path, each.message, on_key=each.on_key) for each in found]


def _plugin_faults(value: Mapping[str, Any], inspect: Inspect) -> Iterator[Fault]:
    plugins = value.get("plugins")
    for index, entry in enumerate(plugins if isinstance(plugins, list) else ()):
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            continue
        parameters = entry.get("parameters")
        for fault in inspect(entry["type"], parameters if isinstance(parameters, dict) else {}):
            path = f"plugins[{index}].{fault.path}"
            yield Fault(path, fault.message, on_key=fault.on_key)


def _defaulted(file: ConfigFile) -> ConfigFile:
    """Name every plugin and move deprecated fields to their successors."""
    flow_control, request_handler = file.flow_control, file.request_handler
    if file.parser is not None and not request_handler.parsers:
        request_handler = RequestHandlerEntry(parsers=(file.parser,))
    if file.saturation_detector is not None and (
        flow_control is None or flow_control.saturation_detector is None
    ):
        flow_control = msgspec.structs.replace(
            flow_control or FlowControlEntry(), saturation_detector=file.saturation_detector
        )
    return msgspec.structs.replace(
        file,
        plugins=tuple(
            PluginEntry(
                type=OLD_TYPES.get(entry.type, entry.type),
                name=entry.name or entry.type,
                parameters=entry.parameters,
            )
            for entry in file.plugins
        ),
        request_handler=request_handler,
        parser=None,
        flow_control=flow_control,
        saturation_detector=None,
    )
