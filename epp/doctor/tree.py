"""Envoy's configuration as a tree of nodes that know their path.

Envoy accepts YAML and JSON, field names as in the .proto files or in camelCase, enums by name or
number, durations as ``1.5s``, and wrapped messages with ``@type``. `ConfigNode` handles all forms.
An absent field is a node, too, so that findings can name its path.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FIELD = re.compile(r"[a-z][A-Za-z0-9]*")
_DURATION = re.compile(r"-?\d+(\.\d+)?s")
_TYPE = "@type"
_STRUCTS = ("udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct")
MAX_LEVELS = 200
"""Maximum depth of a configuration; large ones have about 30 levels."""

_WITH_MATCHER = "envoy.extensions.common.matching.v3.ExtensionWithMatcher"


def with_proto_names(value: object, levels: int = MAX_LEVELS) -> object:
    """Return ``value`` with the field names of the .proto files in place of camelCase.

    Raises:
        RecursionError: Mappings and lists are nested more than ``levels`` deep.
    """
    if not isinstance(value, Mapping | list):
        return value
    if not levels:
        raise RecursionError
    if isinstance(value, list):
        return [with_proto_names(each, levels - 1) for each in value]
    return {proto_name(str(key)): with_proto_names(each, levels - 1) for key, each in value.items()}


def proto_name(key: str) -> str:
    """Return the name that a field has in the .proto files."""
    # Keys of maps, such as names of extensions, have dots and are not changed.
    return _CAMEL.sub("_", key).lower() if _FIELD.fullmatch(key) else key


@dataclass(frozen=True, slots=True)
class ConfigNode:
    """A value of the configuration and its path."""

    value: Any
    path: str

    def __bool__(self) -> bool:
        """Whether the field is set, even to 0 or to an empty message."""
        return self.value is not None

    def get(self, *keys: str) -> "ConfigNode":
        """Return the field at the path ``keys`` below this node, possibly absent."""
        node = self
        for key in keys:
            inside = node.value.get(key) if isinstance(node.value, Mapping) else None
            step = f"[{key}]" if "." in key or "/" in key else f".{key}"
            node = ConfigNode(inside, f"{node.path}{step}" if node.path else key)
        return node

    def items(self) -> Iterator["ConfigNode"]:
        """Yield the items of a list; the path of a named item contains the name."""
        if isinstance(self.value, Sequence) and not isinstance(self.value, str):
            for index, each in enumerate(self.value):
                name = each.get("name") if isinstance(each, Mapping) else None
                shown = name if isinstance(name, str) and name else index
                yield ConfigNode(each, f"{self.path}[{shown}]")

    def text(self, default: str = "") -> str:
        """Return a string; ``default`` if the value is not one."""
        return self.value if isinstance(self.value, str) else default

    def texts(self) -> tuple[str, ...]:
        """Return the strings of a list."""
        return tuple(each.value for each in self.items() if isinstance(each.value, str))

    def flag(self) -> bool:
        """Return a boolean; False if it is absent."""
        return self.value is True

    def number(self, default: int) -> int:
        """Return an integer, a string in JSON for 64-bit types; ``default`` if it is not one."""
        if isinstance(self.value, bool):
            return default
        if isinstance(self.value, int | float):
            return int(self.value)
        text = self.text()
        return int(text) if text.isascii() and text.isdecimal() else default

    def seconds(self, default: float) -> float:
        """Return a duration in seconds; ``default`` if it is absent or invalid."""
        text = self.text()
        return float(text[:-1]) if _DURATION.fullmatch(text) else default

    def choice(self, *names: str) -> str:
        """Return the name of an enum value; ``names`` are in the order of their numbers."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return names[self.value] if 0 <= self.value < len(names) else str(self.value)
        return self.text(names[0])

    def type_name(self) -> str:
        """Return the name of a wrapped message's type, ``envoy.….Router``."""
        name = self._type()
        return self.get("type_url").text().rpartition("/")[2] if name in _STRUCTS else name

    def unwrapped(self) -> "ConfigNode":
        """Return the message inside a wrapper, or the node itself if it is not wrapped."""
        name = self._type()
        if name in _STRUCTS:
            return self.get("value")
        return self

    def typed_config(self) -> "ConfigNode":
        """Return the wrapped message of an extension, even if a matcher wraps the extension."""
        config = self.get("typed_config")
        if config.type_name() == _WITH_MATCHER:
            config = config.unwrapped().get("extension_config", "typed_config")
        return config

    def _type(self) -> str:
        return self.get(_TYPE).text().rpartition("/")[2]
