"""Find the field of a configuration that a path names, such as ``plugins[name=q].parameters.x``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epp.config.paths import join_all
from epp.lab.tuning.errors import TuningError

_STEP = re.compile(
    r"\.?(?P<key>[A-Za-z_][\w-]*)|\[(?P<index>\d{1,6})\]|\[(?P<field>\w+)=(?P<value>[^\]]*)\]"
)
_MAY_BE_ABSENT = frozenset({"weight", "parameters"})
_MAX_NAMES = 12


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """A field of a configuration."""

    members: tuple[str | int, ...]
    """Keys and indices from the root."""
    value: object
    """Its value; None if the file leaves it out."""
    owner: str
    """Name of the plugin that it belongs to; "" for none."""

    @property
    def path(self) -> str:
        """The path with indices, as messages of the configuration name it."""
        return join_all(self.members)

    @property
    def name(self) -> str:
        """A short name for tables, such as ``queue-scorer weight``."""
        return f"{self.owner} {self.members[-1]}" if self.owner else self.path


def find_place(document: Mapping[str, Any], path: str) -> FieldPlace:
    """Return the field that a path names.

    A list's item is named by its index, from 0, or by one of its fields: ``[name=q]`` also finds a
    plugin without a name whose type is `q`. A `weight` and parameters of a plugin may be absent.

    Args:
        document: The configuration.
        path: The path.

    Raises:
        TuningError: There is no such field; the message says which exist.
    """
    members: list[str | int] = []
    value: object = document
    owner = ""
    for match in _steps(path):
        value, member = _below(value, match, members, path)
        members.append(member)
        if isinstance(value, Mapping):
            owner = _owner(value) or owner
    if isinstance(value, Mapping | list):
        kind = "a mapping" if isinstance(value, Mapping) else "a list"
        below = join_all(members)
        raise TuningError(f"{path}: is {kind}, not a value; {_existing(below, value)}")
    return FieldPlace(tuple(members), value, owner)


def _steps(path: str) -> list[re.Match[str]]:
    found, position = [], 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise TuningError(
                f"{path!r} is no path: {path[position:]!r} is not understood; write a path as"
                " schedulingProfiles[0].plugins[1].weight or plugins[name=q].parameters.threshold"
            )
        found.append(match)
        position = match.end()
    if not found:
        raise TuningError("the path is empty; write one as schedulingProfiles[0].plugins[1].weight")
    return found


def _below(
    value: object, match: re.Match[str], members: Sequence[str | int], path: str
) -> tuple[object, str | int]:
    where = join_all(members)
    if key := match["key"]:
        if isinstance(value, Mapping) and key in value:
            return value[key], key
        is_parameter = bool(members) and members[-1] == "parameters"
        if is_parameter and (value is None or isinstance(value, Mapping)):
            return None, key
        if key in _MAY_BE_ABSENT and isinstance(value, Mapping):
            return None, key
        raise TuningError(f"{path}: there is no `{key}`; {_existing(where, value)}")
    if not isinstance(value, list):
        raise TuningError(f"{path}: {where or 'the configuration'} is no list")
    if index := match["index"]:
        if int(index) < len(value):
            return value[int(index)], int(index)
        raise TuningError(f"{path}: there is no [{index}]; {_existing(where, value)}")
    field, wanted = match["field"], match["value"]
    found = [at for at, each in enumerate(value) if _has(each, field, wanted)]
    if len(found) == 1:
        return value[found[0]], found[0]
    problem = "several items have" if found else "no item has"
    raise TuningError(f"{path}: {problem} {field}={wanted}; {_existing(where, value, field)}")


def _has(item: object, field: str, wanted: str) -> bool:
    return isinstance(item, Mapping) and _field(item, field) == wanted


def _field(item: Mapping[str, Any], field: str) -> str:
    given = item.get(field)
    if given is None and field == "name":
        given = item.get("type")
    return "" if given is None else str(given)


def _owner(item: Mapping[str, Any]) -> str:
    if "pluginRef" in item:
        return str(item["pluginRef"])
    return _field(item, "name") if "type" in item else ""


def _existing(where: str, value: object, field: str = "") -> str:
    """Return which members exist, for an error."""
    inside = f"{where} has" if where else "there are"
    if isinstance(value, Mapping):
        names = [str(key) for key in value]
    elif isinstance(value, list):
        names = [
            _named(at, each, field) for at, each in enumerate(value) if isinstance(each, Mapping)
        ] or [f"[{at}]" for at in range(len(value))]
    else:
        return f"{where} has nothing below it"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{inside} {', '.join(names[:_MAX_NAMES]) or 'nothing'}{more}"


def _named(index: int, item: Mapping[str, Any], field: str) -> str:
    if field:
        return f"[{field}={_field(item, field)}]" if _field(item, field) else f"[{index}]"
    owner = _owner(item) or _field(item, "name")
    return f"[{index}] ({owner})" if owner else f"[{index}]"
