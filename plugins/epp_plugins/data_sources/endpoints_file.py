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

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import yaml

from epp.data_layer.plugins import DiscoveryError, EndpointSpec
from epp_plugins.data_sources.marked_yaml import ItemLines, load

MOST_FAULTS: Final = 20
"""Maximum faults in one message."""

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


class LenientFile(msgspec.Struct, frozen=True, rename="camel"):
    """The whole file with entries of any form; other sections are ignored."""

    endpoints: list[Any]


class EndpointsFile(LenientFile, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The same, strict."""


@dataclass(frozen=True, slots=True)
class EntryRules:
    """What an entry may say."""

    takes_names: bool = False
    """An address may be a host name."""
    check: Callable[[str, Mapping[str, str]], object] = lambda address, labels: None
    """Raises ValueError for an address (``host:port``) with labels that are faulty."""


_PLAIN: Final = EntryRules()

_File = TypeVar("_File", bound=LenientFile)


def parse(path: Path, content: bytes, rules: EntryRules = _PLAIN) -> list[EndpointSpec]:
    """Return the endpoints that ``content`` lists, in its order.

    Args:
        path: Of the file, for messages.
        content: What it holds.
        rules: What an entry may say.

    Raises:
        DiscoveryError: It is no YAML or JSON, a field is missing, unknown, wrong or given twice, or
            two entries have the same namespace and name. The message has a line for each faulty
            entry, with file, line, entry and field.
    """
    file = _file(path, content, EndpointsFile)
    faults = _Faults(path, content)
    specs: list[EndpointSpec] = []
    seen: dict[str, int] = {}
    for index, raw in enumerate(file.endpoints):
        try:
            spec = _spec(raw, FileEndpoint, rules)
        except _EntryError as error:
            faults.add(index, error)
            continue
        if spec.name in seen:
            first = seen[spec.name]
            line = faults.line(first)
            text = (
                f"same namespace and name as `$.endpoints[{first}]`"
                f"{f' in line {line}' if line else ''}, {spec.name!r}: rename or remove one of them"
            )
            faults.add(index, _EntryError(text))
        else:
            seen[spec.name] = index
            specs.append(spec)
    if faults.texts:
        raise DiscoveryError(faults.summary())
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
    file = _file(path, content, LenientFile)
    faults = _Faults(path, content)
    specs: dict[str, EndpointSpec] = {}
    for index, raw in enumerate(file.endpoints):
        for key in raw if isinstance(raw, dict) else ():
            if key not in FileEndpoint.__struct_encode_fields__:
                faults.add(index, _EntryError(f"unknown field `{key}` ignored"))
        try:
            spec = _spec(raw, LenientEndpoint, rules)
        except _EntryError as error:
            faults.add(index, error)
            continue
        if spec.name in specs:
            text = f"another entry before is {spec.name!r}, too; the last one counts"
            faults.add(index, _EntryError(text))
        specs[spec.name] = spec
    if faults.texts and not specs:
        raise DiscoveryError(faults.summary())
    return list(specs.values()), faults.texts


class _EntryError(Exception):
    """What is wrong with an entry; ``where`` is the place in it, ``.port``."""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.where = where


class _Faults:
    """What is wrong with a file, each with the line of its entry or field."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.texts: list[str] = []
        self._path = path
        self._content = content
        self._lines: ItemLines | None = None

    def add(self, index: int, error: _EntryError) -> None:
        line = self.line(index, error.where.removeprefix("."))
        self.texts.append(
            f"endpoints file {self._path}{f', line {line}' if line else ''}: {error} - at"
            f" `$.endpoints[{index}]{error.where}`"
        )

    def line(self, index: int, field: str = "") -> int | None:
        if self._lines is None:  # sound files are not read twice
            self._lines = ItemLines(self._content, "endpoints")
        return self._lines.line(index, field)

    def summary(self) -> str:
        more = len(self.texts) - MOST_FAULTS
        last = [f"endpoints file {self._path}: {more} more faults"] if more > 0 else []
        return "\n".join([*self.texts[:MOST_FAULTS], *last])


def _spec(raw: object, kind: type[LenientEndpoint], rules: EntryRules) -> EndpointSpec:
    try:
        entry = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        raise _EntryError(text, where.rstrip("`")) from None
    name = f"{entry.namespace or 'default'}/{entry.name}"
    host = _checked_host(entry.address, takes_names=rules.takes_names)
    address, labels = f"{host}:{_checked_port(entry)}", entry.labels or {}
    try:
        rules.check(address, labels)
    except ValueError as error:
        raise _EntryError(str(error), ".labels") from None
    return EndpointSpec(name, address, labels)


def _file(path: Path, content: bytes, kind: type[_File]) -> _File:
    try:
        return msgspec.convert(_loaded(path, content), kind)
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"endpoints file {path}: {error}") from None


def _loaded(path: Path, content: bytes) -> object:
    """Return the plain values of the file.

    Raises:
        DiscoveryError: It is no YAML or JSON.
    """
    try:
        return load(content)
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


def is_host_name(text: str) -> bool:
    """Return whether ``text`` is a DNS name (RFC 1123) with a letter in it."""
    return len(text) <= _MOST_NAME and _HOST_NAME(text) is not None


def _checked_host(address: str, *, takes_names: bool) -> str:
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
        raise _EntryError(f"{address!r} is not {wanted}", ".address")
    return f"[{ip}]" if isinstance(ip, IPv6Address) else str(ip)


def _checked_port(entry: LenientEndpoint) -> int:
    port = entry.port
    if isinstance(port, int):
        return port
    if not (port.isascii() and port.isdecimal()) or int(port) not in _PORTS:
        raise _EntryError(f"port {port!r} must be a number from 1 to 65535", ".port")
    return int(port)
