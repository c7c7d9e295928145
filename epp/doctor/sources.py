"""Read an Envoy configuration from a file or from the admin endpoint of a running Envoy.

A file may contain a bootstrap, a `/config_dump`, or either of them inside the document of a tool
that collects them from several Envoys. Error texts never quote the input: it may contain secrets.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import yaml

from epp.doctor.errors import UnreadableError
from epp.doctor.tree import MAX_LEVELS, ConfigNode, with_proto_names
from epp.inputs.yaml_edits import YAML_LOADER

TIMEOUT_SECONDS = 10.0
_MAX_NESTED = 4
"""Maximum depth at which a tool's document is searched for a configuration."""

_SEVERAL = "expected a single document in the stream"
"""PyYAML's message, because the class of the error is not specific."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """The configuration and state of one Envoy."""

    roots: tuple[ConfigNode, ...]
    """Bootstraps and sections of a `/config_dump`."""

    version: Version | None = None
    """Version of Envoy; None if unknown."""

    counters: Mapping[str, int] | None = None
    """Counters and gauges by name; None for a file."""

    bootstraps: tuple[ConfigNode, ...] = field(default=())
    """The roots that may contain the admin endpoint."""


def read_file(path: Path) -> Source:
    """Read a bootstrap or a `/config_dump`, YAML or JSON.

    Raises:
        UnreadableError: The file does not exist, or contains neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UnreadableError(f"{path}: not UTF-8 text") from None
    return read_text(text, str(path))


def read_text(text: str, name: str) -> Source:
    """Read the text of a file.

    Raises:
        UnreadableError: The text contains no Envoy configuration.
    """
    return source(_parsed(text, name), name)


def read_admin(url: str) -> Source:
    """Read the configuration, version and counters of a running Envoy; blocks.

    Raises:
        UnreadableError: There is no response, or it is not from an Envoy admin endpoint.
    """
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL:  # the error's text may contain a password
        raise UnreadableError("--admin: not a URL such as http://127.0.0.1:9901") from None
    if base.scheme not in {"http", "https"} or not base.host:
        raise UnreadableError("--admin: give a URL such as http://127.0.0.1:9901")
    shown = str(base.copy_with(username=None, password=None, query=None, fragment=None)).rstrip("/")
    with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:

        def get(path: str) -> str:
            target = base.copy_with(raw_path=(base.path.rstrip("/") + path).encode())
            try:
                response = client.get(target)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise UnreadableError(f"{shown}{path}: {reason}") from None
            if response.status_code != httpx.codes.OK:
                raise UnreadableError(f"{shown}{path}: answered {response.status_code}")
            return response.text

        # EDS adds the endpoints; nothing else of the dump depends on it.
        found = source(_parsed(get("/config_dump?include_eds"), shown), shown)
        server = _parsed(get("/server_info"), shown)
        counters = dict(_counters(get("/stats?usedonly")))
    version = _version(ConfigNode(server, "").get("version").text()) or found.version
    return Source(found.roots, version, counters, found.bootstraps)


def source(document: object, name: str) -> Source:
    """Extract the source from a document that was read from ``name``.

    Raises:
        UnreadableError: The document contains no Envoy configuration.
    """
    try:
        envoys = list(_envoys(with_proto_names(document), _MAX_NESTED))
    except RecursionError:
        raise UnreadableError(f"{name}: nested too deeply (over {MAX_LEVELS} levels)") from None
    if not any(envoys):
        raise UnreadableError(
            f"{name}: neither a bootstrap (static_resources, dynamic_resources, admin) nor a"
            " /config_dump (configs) of Envoy"
        )
    if len(envoys) > 1:
        raise UnreadableError(f"{name}: contains the configurations of {len(envoys)} Envoys, not 1")
    roots = envoys[0]
    bootstraps = tuple(
        inside if (inside := root.get("bootstrap")) else root
        for root in roots
        if root.get("bootstrap") or not root.get("@type")
    )
    versions = (_built(each.get("node", "user_agent_build_version")) for each in bootstraps)
    return Source(roots, next(filter(None, versions), None), None, bootstraps)


def _envoys(value: object, deepest: int) -> Iterator[tuple[ConfigNode, ...]]:
    """Yield each Envoy's bootstrap or the sections of its dump, at any depth up to ``deepest``."""
    if not isinstance(value, Mapping) or not deepest:
        return
    configs = value.get("configs")
    if isinstance(configs, list):
        yield tuple(ConfigNode(each, "") for each in configs if isinstance(each, Mapping))
    elif any(isinstance(value.get(key), Mapping) for key in _OF_BOOTSTRAPS):
        yield (ConfigNode(value, ""),)
    else:
        for each in value.values():
            yield from _envoys(each, deepest - 1)


_OF_BOOTSTRAPS = ("static_resources", "dynamic_resources", "admin")


def _parsed(text: str, name: str) -> object:
    try:
        # PyYAML takes a hundred times as long for the JSON of a large dump.
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return yaml.load(text, YAML_LOADER)  # noqa: S506 - a safe loader, in C where there is one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        if error.context == _SEVERAL:
            raise UnreadableError(
                f"{name}{place}: several YAML documents (Kubernetes manifests?) are not an Envoy"
                " configuration; give the bootstrap, or --admin with the URL of the running Envoy"
            ) from None
        raise UnreadableError(f"{name}{place}: neither YAML nor JSON") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UnreadableError(f"{name}: neither YAML nor JSON") from None


def _counters(text: str) -> Iterator[tuple[str, int]]:
    """Yield counters and gauges; skip histograms."""
    for line in text.splitlines():
        name, _, value = line.rpartition(": ")
        if name and value.isascii() and value.isdecimal():
            yield name, int(value)


def _version(text: str) -> Version | None:
    """Return the version in ``commit/1.40.0/Clean/RELEASE/BoringSSL``."""
    match = next((each for part in text.split("/") if (each := _VERSION.match(part))), None)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def _built(build: ConfigNode) -> Version | None:
    version = build.get("version")
    major = version.get("major_number").number(0)
    if not major:
        return None
    return major, version.get("minor_number").number(0), version.get("patch").number(0)
