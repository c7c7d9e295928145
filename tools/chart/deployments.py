"""Differences between the Deployment of the Go EPP's chart and this chart's, for one values file.

The Deployments of the Go EPP's chart are files in ``go_deployments/``, one for each values file of
``tests/deploy/chart_values`` that is compared. Lists whose items have a name are compared by name,
and arguments by flag, so that ``--pool-name llama`` and ``--pool-name=llama`` are the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

GO_DEPLOYMENTS: Final = Path(__file__).with_name("go_deployments")
ENVOY: Final = {"envoy-proxy": "envoy"}
"""Envoy's container by its name in the Go EPP's chart, and its name here: they are compared."""

_KEYS: Final = ("name", "mountPath", "topologyKey")


class _Absent:
    """Stands for a value that a Deployment lacks; ``None`` would be a value."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not the same in both Deployments."""

    path: str
    """Such as ``spec.template.spec.containers[epp].args[--pool-name]``."""
    go: Any
    """Value in the Go EPP's chart, or `ABSENT`."""
    ours: Any
    """Value in this chart, or `ABSENT`."""


def go_deployments() -> dict[str, dict[str, Any]]:
    """Return the Deployments of the Go EPP's chart by the name of the values file."""
    return {
        path.stem: yaml.safe_load(path.read_text())
        for path in sorted(GO_DEPLOYMENTS.glob("*.yaml"))
    }


def differences(go: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Difference]:
    """Return the differences in the order of the fields; a missing part is one difference."""
    return list(_differences(_normal(go), _normal(ours), ""))


def _differences(go: Any, ours: Any, path: str) -> Iterator[Difference]:
    if go == ours:
        return
    if not (isinstance(go, dict) and isinstance(ours, dict)):
        yield Difference(path, go, ours)
        return
    for name in [*go, *(name for name in ours if name not in go)]:
        at = path + name if name.startswith("[") else f"{path}.{name}".lstrip(".")
        yield from _differences(go.get(name, ABSENT), ours.get(name, ABSENT), at)


def _normal(value: Any) -> Any:
    if isinstance(value, Mapping):
        found = {name: _normal(each) for name, each in value.items()}
        if "containers" in value:
            # A sidecar container is among the init containers.
            every = [*value.get("initContainers", ()), *value["containers"]]
            found.pop("initContainers", None)
            found["containers"] = {f"[{_container(each)}]": _normal(each) for each in every}
        if "args" in value:
            found["args"] = _flags(value["args"])
        return found
    if isinstance(value, Sequence) and not isinstance(value, str):
        if key := _key(value):
            return {f"[{each[key]}]": _normal(each) for each in value}
        return [_normal(each) for each in value]
    return value


def _container(described: Mapping[str, Any]) -> str:
    name: str = described["name"]
    return ENVOY.get(name, name)


def _key(items: Sequence[Any]) -> str | None:
    """Return the field that tells the items apart, if there is one."""
    for key in _KEYS:
        if items and all(isinstance(each, Mapping) and key in each for each in items):
            values = [each[key] for each in items]
            if len(set(values)) == len(values):
                return key
    return None


def _flags(args: Sequence[str]) -> dict[str, str]:
    """Return the value of each flag; the last one of its name counts, as for the programs."""
    found: dict[str, str] = {}
    words = list(args)
    while words:
        name, separator, value = words.pop(0).partition("=")
        if not separator:
            value = words.pop(0) if words and not words[0].startswith("-") else "true"
        found[f"[{name}]"] = value
    return found
