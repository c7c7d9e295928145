"""Compose YAML into nodes and dump values to YAML, with the scalar rules of the Go EPP's parser."""

import re
from typing import Final

import yaml

_TAG = "tag:yaml.org,2002:"
MERGE_TAG: Final = _TAG + "merge"

_BY_TAG = {
    _TAG + "merge": re.compile("<<"),
    _TAG + "null": re.compile("~|null|Null|NULL|"),
    _TAG + "bool": re.compile(
        "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF"
    ),
    _TAG + "int": re.compile(
        r"[-+]?(?:0|[1-9][0-9_]*|0[bB][01][01_]*|0[oO]?[0-7][0-7_]*|0[xX][0-9a-fA-F][0-9a-fA-F_]*)"
    ),
    _TAG + "float": re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
}
_TRUE = frozenset({"yes", "true", "on"})
_OCTAL = re.compile(r"([-+]?)0[oO]?([0-7]+)")
_INTEGERS = range(-(2**63), 2**64)
_MAX_DIGITS = 100
_LINE_BREAKS = frozenset("\x85\u2028\u2029")


class _Composer(yaml.SafeLoader):
    """Composes nodes; limits depth and count."""

    def __init__(self, text: str, max_depth: int, max_nodes: int) -> None:
        super().__init__(text)
        self._depth_left = max_depth
        self._nodes_left = max_nodes

    def get_single_node(self) -> yaml.Node | None:
        """Return the only document; empty ones after it, as templates leave them, are none."""
        self.get_event()  # type: ignore[no-untyped-call] # of PyYAML; the stream's start
        if self.check_event(yaml.StreamEndEvent):
            return None
        node = self.compose_document()
        while not self.check_event(yaml.StreamEndEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            if not _is_nothing(self.compose_document()):
                raise yaml.composer.ComposerError(
                    "expected a single document in the stream",
                    node.start_mark if node else None,
                    "but found another document",
                    mark,
                )
        return node

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth_left -= 1
        self._nodes_left -= 1
        if self._depth_left < 0 or self._nodes_left < 0:
            too_much = "nested too deeply" if self._depth_left < 0 else "too many values"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call] # of PyYAML
            raise yaml.composer.ComposerError(None, None, too_much, mark)
        node = super().compose_node(parent, index)
        self._depth_left += 1
        return node

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        return _resolved(kind, value, implicit)


class _Dumper(yaml.SafeDumper):
    """Writes scalars so that :class:`_Composer` reads them back; uses no aliases."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        return _resolved(kind, value, implicit)

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_scalar(self, tag: str, value: str, style: str | None = None) -> yaml.ScalarNode:
        # PyYAML writes these line breaks as they are in other styles, and reads them as blanks.
        if not _LINE_BREAKS.isdisjoint(value):
            style = '"'
        return super().represent_scalar(tag, value, style)


def _is_nothing(node: yaml.Node | None) -> bool:
    return node is None or (
        isinstance(node, yaml.ScalarNode) and node.value == "" and not node.style
    )


def _resolved(kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
    if kind is yaml.ScalarNode and implicit[0]:
        for tag, pattern in _BY_TAG.items():
            if pattern.fullmatch(value):
                return tag
    return _DEFAULT_TAGS[kind]


_DEFAULT_TAGS: dict[type[yaml.Node], str] = {
    yaml.ScalarNode: _TAG + "str",
    yaml.SequenceNode: _TAG + "seq",
    yaml.MappingNode: _TAG + "map",
}


def compose(text: str, *, max_depth: int, max_nodes: int) -> yaml.Node | None:
    """Return the root node of a document; None for an empty one.

    Raises:
        yaml.YAMLError: It is malformed or exceeds a limit.
        ValueError: It contains an invalid escape or number.
    """
    loader = _Composer(text, max_depth, max_nodes)
    try:
        node: yaml.Node | None = loader.get_single_node()
    finally:
        loader.dispose()
    return node


def dump(value: object) -> str:
    """Return plain values as YAML; keys keep their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def require_plain(node: yaml.Node) -> None:
    """Check that a mapping or list has no explicit tag.

    Raises:
        ValueError: It has a tag such as ``!!set``.
    """
    if node.tag != _DEFAULT_TAGS[type(node)]:
        raise ValueError(f"tag `{node.tag}` has no meaning here; remove it")


def scalar(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """Return the value of a scalar.

    Raises:
        ValueError: The text does not match the tag, or the number exceeds 64 bits.
    """
    text: str = node.value
    if node.tag == _DEFAULT_TAGS[yaml.ScalarNode] or node.tag == MERGE_TAG:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("half of a character, a surrogate; write it in UTF-8")
        return text
    pattern = _BY_TAG.get(node.tag)
    if pattern is None:
        raise ValueError(f"tag `{node.tag}` has no meaning here; remove it")
    if not pattern.fullmatch(text):
        raise ValueError(f"this text is not what its tag `{node.tag}` says")
    if node.tag == _TAG + "null":
        return None
    if node.tag == _TAG + "bool":
        return text.lower() in _TRUE
    if node.tag == _TAG + "float":
        return float(re.sub(r"\.(?=[inIN])", "", text))  # Python writes inf and nan without a dot
    return _integer(text)


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    octal = _OCTAL.fullmatch(digits)
    if len(digits) <= _MAX_DIGITS:
        number = int(octal[1] + octal[2], 8) if octal else int(digits, 0)
        if number in _INTEGERS:
            return number
    raise ValueError("a number beyond 64 bits")
