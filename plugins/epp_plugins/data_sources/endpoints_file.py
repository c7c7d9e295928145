"""Schema, limits and parsing of the endpoints file, for :mod:`.file_discovery`.

The file is YAML or JSON in the format of the Go EPP; ports as numbers and IPv6 are also accepted::

    endpoints:
      - name: vllm-0
        namespace: default      # the default
        address: 10.0.0.7       # an IP address, not a host name
        port: "8000"            # or the number
        labels: {llm-d.ai/role: decode}

:func:`parse` refuses a file that has an invalid entry; :func:`parse_leniently` leaves out only the
invalid entries, as the Go EPP does when it reloads a file; it is used with ``--compat=reference``.
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

MAX_FAULTS: Final = 20
"""Maximum faults in one message."""

_MAX_NAME = 253
_HOST_NAME = re.compile(
    r"(?=[^a-zA-Z]*[a-zA-Z])(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.(?=.)|\.?$))+",
    re.ASCII,
).fullmatch

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=r"^[^\s/]+$(?!\n)")]


_PORTS = range(1, 65536)


class LenientEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the file; unknown fields are ignored."""

    name: _Name
    address: str
    port: (
        Annotated[int, msgspec.Meta(ge=1, le=65535)]
        | Annotated[str, msgspec.Meta(min_length=1, max_length=10)]
    )
    """A number or, as in the Go EPP, a string of digits."""
    namespace: _Name | None = None
    """None means ``default``."""
    labels: dict[str, str] | None = None


class FileEndpoint(LenientEndpoint, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One entry of the file; unknown fields are errors."""


_FIELDS: Final = ", ".join(FileEndpoint.__struct_encode_fields__)


class LenientFile(msgspec.Struct, frozen=True, rename="camel"):
    """The whole file with entries of any form; other sections are ignored."""

    endpoints: list[Any]


class EndpointsFile(LenientFile, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The whole file with entries of any form; other sections are errors."""


@dataclass(frozen=True, slots=True)
class EntryRules:
    """Rules for entries beyond the schema."""

    takes_names: bool = False
    """Whether an address may be a host name."""
    check: Callable[[str, Mapping[str, str]], object] = lambda address, labels: None
    """Raises ValueError if the labels of an address (``host:port``) are invalid."""


_PLAIN: Final = EntryRules()

_File = TypeVar("_File", bound=LenientFile)


def parse(path: Path, content: bytes, rules: EntryRules = _PLAIN) -> list[EndpointSpec]:
    """Return the endpoints in ``content``, in file order.

    Args:
        path: Path of the file, for messages.
        content: Content of the file.
        rules: Rules for its entries.

    Raises:
        DiscoveryError: The file is not YAML or JSON, a field is missing, unknown, invalid or
            duplicate, or two entries have the same namespace and name. The message has one line per
            invalid entry, with file, line, entry and field.
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
    """Return the endpoints of the valid entries, and the errors of the file.

    Invalid entries are left out and unknown fields are ignored. Of several entries with the same
    namespace and name, the last one is used.

    Raises:
        DiscoveryError: The file is not YAML or JSON, has no list ``endpoints``, or all of its
            entries are invalid.
    """
    file = _file(path, content, LenientFile)
    faults = _Faults(path, content)
    specs: dict[str, EndpointSpec] = {}
    for index, raw in enumerate(file.endpoints):
        for key in raw if isinstance(raw, dict) else ():
            if key not in FileEndpoint.__struct_encode_fields__:
                text = f"unknown field `{key}`, ignored; the fields are {_FIELDS}"
                faults.add(index, _EntryError(text))
        try:
            spec = _spec(raw, LenientEndpoint, rules)
        except _EntryError as error:
            faults.add(index, error)
            continue
        if spec.name in specs:
            text = (
                f"same namespace and name as an earlier entry, {spec.name!r}, which this entry"
                " replaces: rename or remove one of them"
            )
            faults.add(index, _EntryError(text))
        specs[spec.name] = spec
    if faults.texts and not specs:
        raise DiscoveryError(faults.summary())
    return list(specs.values()), faults.texts


class _EntryError(Exception):
    """An entry is invalid; ``where`` is the path of the field in it, such as ``.port``."""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.where = where


class _Faults:
    """The errors of a file, each with the line of its entry or field."""

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
        if self._lines is None:  # valid files are parsed once
            self._lines = ItemLines(self._content, "endpoints")
        return self._lines.line(index, field)

    def summary(self) -> str:
        more = len(self.texts) - MAX_FAULTS
        last = [f"endpoints file {self._path}: {more} more faults"] if more > 0 else []
        return "\n".join([*self.texts[:MAX_FAULTS], *last])


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
        text = f"endpoints file {path}: {error}; expected `endpoints:` and a list"
        raise DiscoveryError(text) from None


def _loaded(path: Path, content: bytes) -> object:
    """Return the plain values of the file.

    Raises:
        DiscoveryError: The file is not YAML or JSON.
    """
    try:
        return load(content)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        text = f"endpoints file {path}{where}: not valid YAML or JSON: {said}"
        raise DiscoveryError(text) from None
    except (yaml.YAMLError, ValueError) as error:  # bad encoding: no mark, perhaps several lines
        said = " ".join(str(error).split())
        raise DiscoveryError(f"endpoints file {path}: not valid YAML or JSON: {said}") from None


def is_host_name(text: str) -> bool:
    """Return whether ``text`` is a DNS name (RFC 1123) with a letter in it."""
    return len(text) <= _MAX_NAME and _HOST_NAME(text) is not None


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
            else "an IPv4 or IPv6 address; host names are not resolved"
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
