"""Text to :class:`ConfigFile`: YAML, then the strict schema, then what the schema cannot say."""

from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from epp.config.errors import ConfigError
from epp.config.schema import API_VERSIONS, KIND, UNSUPPORTED_SECTIONS, ConfigFile


def load_file(path: Path) -> ConfigFile:
    """Read a configuration file.

    Raises:
        ConfigError: It cannot be read, or :func:`load_text` refuses it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    return load_text(text, str(path))


def load_text(text: str, source: str) -> ConfigFile:
    """Parse and check a configuration.

    Args:
        text: YAML or JSON.
        source: Where it is from, for messages.

    Raises:
        ConfigError: Malformed YAML (with line and column), or a field that is unknown, missing or
            wrong (with its path).
    """
    try:
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    except (ValueError, RecursionError) as error:
        # A date that is none, an integer without digits, nesting without end.
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with kind: {KIND} at the top level")
    for section in UNSUPPORTED_SECTIONS:
        if section in document:
            raise ConfigError(f"{source}: section {section!r} is not supported yet; remove it")
    try:
        config = msgspec.convert(document, ConfigFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
    _check(config, source)
    return config


def _check(config: ConfigFile, source: str) -> None:
    if config.kind != KIND:
        raise ConfigError(f"{source}: kind is {config.kind!r}, expected {KIND!r}")
    if config.api_version not in API_VERSIONS:
        known = " or ".join(API_VERSIONS)
        raise ConfigError(f"{source}: apiVersion is {config.api_version!r}, expected {known}")
    if config.feature_gates:
        raise ConfigError(
            f"{source}: feature gate {config.feature_gates[0]!r} is not supported yet; remove it"
        )
    names = [entry.name or entry.type for entry in config.plugins]
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"{source}: {count} plugins are named {name!r}; names are unique")
    for name, count in Counter(p.name for p in config.scheduling_profiles).items():
        if count > 1:
            raise ConfigError(f"{source}: {count} scheduling profiles are named {name!r}")


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses duplicate keys, as the reference does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a scalar", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key!r}", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
