"""The endpoints file: its schema, limits and reading, for :mod:`.file_discovery`.

YAML or JSON, the format of the reference endpoint picker, with numbers as ports and IPv6 besides::

    endpoints:
      - name: vllm-0
        namespace: default      # the default
        address: 10.0.0.7       # an IP address, no host name
        port: "8000"            # or the number
        labels: {llm-d.ai/role: decode}

:func:`parse` refuses a file with a faulty entry as a whole; :func:`parse_leniently` leaves out the
faulty entries alone, as the reference does when it reloads a file.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import yaml

from epp.data_layer.plugins import DiscoveryError, EndpointSpec

if TYPE_CHECKING:
    _SafeLoader = yaml.SafeLoader
else:
    # The C loader reads 1 MiB in a fraction of the time; wheels have it, some systems do not.
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MOST_NESTED = 32
"""The C loader calls itself for each level: 30 thousand of them end the process."""
_MOST_KEYS = 1000
"""In one mapping; ``<<: [*a, *a]`` doubles them with each line."""

_MOST_NAME = 253
_HOST_NAME = re.compile(
    r"(?=[^a-zA-Z]*[a-zA-Z])(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.(?=.)|\.?$))+",
    re.ASCII,
).fullmatch

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=r"^[^\s/]+$(?!\n)")]


_PORTS = range(1, 65536)


class LenientEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the file; fields that are not known are ignored."""

    name: _Name
    address: str
    port: (
        Annotated[int, msgspec.Meta(ge=1, le=65535)]
        | Annotated[str, msgspec.Meta(min_length=1, max_length=10)]
    )
    """A number, or its digits: the reference takes these alone."""
    namespace: _Name | None = None
    """``default`` if not given."""
    labels: dict[str, str] | None = None


class FileEndpoint(LenientEndpoint, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The same, strict."""


class EndpointsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The whole file, strict."""

    endpoints: list[FileEndpoint]


class LenientFile(msgspec.Struct, frozen=True, rename="camel"):
    """The whole file with entries of any form; other sections are ignored."""

    endpoints: list[Any]


@dataclass(frozen=True, slots=True)
class EntryRules:
    """What an entry may say."""

    takes_names: bool = False
    """An address may be a host name."""
    check: Callable[[str, Mapping[str, str]], object] = lambda address, labels: None
    """Raises ValueError for an address (``host:port``) with labels that are faulty."""


_PLAIN: Final = EntryRules()


def parse(path: Path, content: bytes, rules: EntryRules = _PLAIN) -> list[EndpointSpec]:
    """Return the endpoints that ``content`` lists, in its order.

    Args:
        path: Of the file, for messages.
        content: What it holds.
        rules: What an entry may say.

    Raises:
        DiscoveryError: It is no YAML or JSON, a field is missing, unknown, wrong or given twice, or
            two entries have the same namespace and name. The message names file, entry and field.
    """
    try:
        file = msgspec.convert(_loaded(path, content), EndpointsFile)
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"endpoints file {path}: {error}") from None
    specs: list[EndpointSpec] = []
    seen: dict[str, int] = {}
    for index, entry in enumerate(file.endpoints):
        spec = _spec(path, index, entry, rules)
        if spec.name in seen:
            raise DiscoveryError(
                f"endpoints file {path}: $.endpoints[{index}] has the same namespace and name as "
                f"$.endpoints[{seen[spec.name]}], {spec.name!r}: rename or remove one of them"
            )
        seen[spec.name] = index
        specs.append(spec)
    return specs


def parse_leniently(
    path: Path, content: bytes, rules: EntryRules = _PLAIN
) -> tuple[list[EndpointSpec], list[str]]:
    """Return the endpoints of the sound entries, and what is wrong with the file.

    A faulty entry is left out, fields that are not known are ignored, and of several entries with
    one namespace and name the last one counts.

    Raises:
        DiscoveryError: It is no YAML or JSON, or has no list ``endpoints``; or it has entries, all
            of them faulty.
    """
    try:
        file = msgspec.convert(_loaded(path, content), LenientFile)
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"endpoints file {path}: {error}") from None
    specs: dict[str, EndpointSpec] = {}
    faults: list[str] = []
    for index, raw in enumerate(file.endpoints):
        faults += _unknown_fields(path, index, raw)
        try:
            entry = msgspec.convert(raw, LenientEndpoint)
            spec = _spec(path, index, entry, rules)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at `$")
            where = f"$.endpoints[{index}]{place.rstrip('`')}"
            faults.append(f"endpoints file {path}: {message} - at `{where}`")
        except DiscoveryError as error:
            faults.append(str(error))
        else:
            if spec.name in specs:
                text = f"another entry before is {spec.name!r}, too; the last one counts"
                faults.append(f"endpoints file {path}: $.endpoints[{index}]: {text}")
            specs[spec.name] = spec
    if faults and not specs:
        raise DiscoveryError("\n".join(faults))
    return list(specs.values()), faults


def _unknown_fields(path: Path, index: int, raw: object) -> Iterator[str]:
    for key in raw if isinstance(raw, dict) else ():
        if key not in FileEndpoint.__struct_encode_fields__:
            yield f"endpoints file {path}: $.endpoints[{index}]: unknown field `{key}` ignored"


def _spec(path: Path, index: int, entry: LenientEndpoint, rules: EntryRules) -> EndpointSpec:
    name = f"{entry.namespace or 'default'}/{entry.name}"
    host = _checked_host(path, index, entry.address, takes_names=rules.takes_names)
    address, labels = f"{host}:{_checked_port(path, index, entry)}", entry.labels or {}
    try:
        rules.check(address, labels)
    except ValueError as error:
        where = f"`$.endpoints[{index}].labels`"
        raise DiscoveryError(f"endpoints file {path}: {error} - at {where}") from None
    return EndpointSpec(name, address, labels)


def _loaded(path: Path, content: bytes) -> object:
    """Return the plain values of the file.

    Raises:
        DiscoveryError: It is no YAML or JSON.
    """
    try:
        return _load(content)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        text = f"endpoints file {path}{where}: not valid YAML or JSON: {error.problem}"
        raise DiscoveryError(text) from None
    except Exception as error:
        # PyYAML lets out whatever its constructors trip over: IndexError for ``!!int ""``, KeyError
        # for ``!!bool x``, AttributeError for ``!!timestamp x``.
        text = f"endpoints file {path}: not valid YAML or JSON: {type(error).__name__}: {error}"
        raise DiscoveryError(text) from None


def _load(content: bytes) -> object:
    if content.lstrip()[:1] == b"{":
        try:
            return json.loads(content, object_pairs_hook=_unique)
        except json.JSONDecodeError:
            pass  # a YAML flow mapping starts the same way, and YAML's error names line and column
    _check_depth(content)
    return yaml.load(content, Loader=_StrictLoader)  # noqa: S506 - a safe loader


def _check_depth(content: bytes) -> None:
    depth = 0
    for event in yaml.parse(content, Loader=_SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MOST_NESTED:
                raise yaml.MarkedYAMLError(
                    problem="nested too deeply",
                    problem_mark=event.start_mark,  # type: ignore[arg-type] # the C loader's class
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key!r}")
        found[key] = value
    return found


class _StrictLoader(_SafeLoader):
    """Refuses a key given twice, of which the last would win, and mappings without bounds."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MOST_KEYS:
            text = f"more than {_MOST_KEYS} keys"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # refused below, with its mark
            key = (key_node.tag, key_node.value)
            if key in seen:
                text = f"duplicate key {key_node.value!r}"
                raise yaml.constructor.ConstructorError(None, None, text, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def is_host_name(text: str) -> bool:
    """Return whether ``text`` is a DNS name (RFC 1123) with a letter in it."""
    return len(text) <= _MOST_NAME and _HOST_NAME(text) is not None


def _checked_host(path: Path, index: int, address: str, *, takes_names: bool) -> str:
    try:
        ip = ip_address(address)
    except ValueError:
        ip = None
    if ip is None and takes_names and is_host_name(address):
        return address
    if ip is None or (isinstance(ip, IPv6Address) and ip.scope_id):
        wanted = (
            "an IPv4 or IPv6 address or a host name"
            if takes_names
            else "an IPv4 or IPv6 address, which the gateway must be given"
        )
        raise DiscoveryError(
            f"endpoints file {path}: {address!r} is not {wanted} - at"
            f" `$.endpoints[{index}].address`"
        )
    return f"[{ip}]" if isinstance(ip, IPv6Address) else str(ip)


def _checked_port(path: Path, index: int, entry: LenientEndpoint) -> int:
    port = entry.port
    if isinstance(port, int):
        return port
    if not (port.isascii() and port.isdecimal()) or int(port) not in _PORTS:
        raise DiscoveryError(
            f"endpoints file {path}: port {port!r} must be a number from 1 to 65535 - at "
            f"`$.endpoints[{index}].port`"
        )
    return int(port)
