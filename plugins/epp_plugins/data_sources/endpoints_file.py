"""The endpoints file: its schema, limits and reading, for :mod:`.file_discovery`.

YAML or JSON, the format of the reference endpoint picker, with IPv6 besides::

    endpoints:
      - name: vllm-0
        namespace: default      # the default
        address: 10.0.0.7       # an IP address, no host name
        port: 8000
        labels: {llm-d.ai/role: decode}
"""

import os
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Final

import msgspec
import yaml

from epp.data_layer.plugins import DiscoveryError, EndpointSpec

MAX_FILE_BYTES: Final = 1024 * 1024
"""The reference's limit."""

# The C loader reads a file of 1 MiB in a fraction of the time; wheels have it, some systems do not.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=r"^[^\s/]+$")]


class FileEndpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One entry of the file."""

    name: _Name
    address: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    namespace: _Name = "default"
    labels: dict[str, str] = {}


class EndpointsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The whole file."""

    endpoints: list[FileEndpoint]


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells one version of a file from the next, without reading it."""

    device: int
    inode: int
    modified_ns: int
    size_bytes: int

    @classmethod
    def of(cls, stat: os.stat_result) -> "FileState":
        """Take the state out of what ``stat`` says of the file (not of a link to it)."""
        return cls(stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def look(path: Path) -> FileState:
    """Return the present state of the file; links are followed, so a swapped one shows.

    Raises:
        DiscoveryError: It cannot be seen.
    """
    try:
        return FileState.of(path.stat())
    except OSError as error:
        raise _unreadable(path, error) from error


def read(path: Path) -> tuple[FileState, bytes]:
    """Return the content of the file and the state it had before it was read.

    Raises:
        DiscoveryError: It cannot be read or is larger than ``MAX_FILE_BYTES``.
    """
    try:
        with path.open("rb") as file:
            state = FileState.of(os.fstat(file.fileno()))
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(content) > MAX_FILE_BYTES:
        raise DiscoveryError(f"endpoints file {path}: larger than the limit of 1 MiB")
    return state, content


def parse(path: Path, content: bytes) -> list[EndpointSpec]:
    """Return the endpoints that ``content`` lists, in its order.

    Raises:
        DiscoveryError: It is no YAML or JSON, a field is missing, unknown or wrong, or two
            entries have the same namespace and name. The message names file, entry and field.
    """
    try:
        file = msgspec.convert(_load(content), EndpointsFile)
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"endpoints file {path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        text = f"endpoints file {path}{where}: not valid YAML or JSON: {error.problem}"
        raise DiscoveryError(text) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = f"endpoints file {path}: not valid YAML or JSON: {error}"
        raise DiscoveryError(text) from None
    specs: list[EndpointSpec] = []
    seen: dict[str, int] = {}
    for index, entry in enumerate(file.endpoints):
        name = f"{entry.namespace}/{entry.name}"
        if name in seen:
            raise DiscoveryError(
                f"endpoints file {path}: $.endpoints[{index}] has the same namespace and name as "
                f"$.endpoints[{seen[name]}], {name!r}: rename or remove one of them"
            )
        seen[name] = index
        address = f"{_checked_host(path, index, entry.address)}:{entry.port}"
        specs.append(EndpointSpec(name, address, entry.labels))
    return specs


def _load(content: bytes) -> object:
    if content.lstrip()[:1] == b"{":
        try:
            return msgspec.json.decode(content)
        except msgspec.DecodeError:
            pass  # a YAML flow mapping starts the same way, and YAML's error names line and column
    return yaml.load(content, Loader=_Loader)  # noqa: S506 - a safe loader


def _checked_host(path: Path, index: int, address: str) -> str:
    try:
        ip = ip_address(address)
    except ValueError:
        ip = None
    if ip is None or (isinstance(ip, IPv6Address) and ip.scope_id):
        raise DiscoveryError(
            f"endpoints file {path}: {address!r} is not an IPv4 or IPv6 address, which the gateway "
            f"must be given - at `$.endpoints[{index}].address`"
        )
    return f"[{ip}]" if isinstance(ip, IPv6Address) else str(ip)


def _unreadable(path: Path, error: OSError) -> DiscoveryError:
    reason = error.strerror or str(error)
    return DiscoveryError(f"endpoints file {path}: cannot be read: {reason}")
