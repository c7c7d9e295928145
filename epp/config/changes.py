"""Differences between two plugin graphs: what a reload does to each plugin."""

from dataclasses import dataclass
from enum import Enum

from epp.config.graph import PluginGraph
from epp.config.instances import Instance


class Fate(Enum):
    """What a reload does with a plugin."""

    KEPT = "kept"
    REBUILT = "rebuilt"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Change:
    """What a reload does with one plugin, and why."""

    name: str
    fate: Fate
    reason: str


def changes(previous: PluginGraph, following: PluginGraph) -> tuple[Change, ...]:
    """Return the change of every plugin when ``following`` replaces ``previous``.

    The order is that of ``following``; removed plugins come last. ``following`` must have been
    built with ``previous`` as its predecessor.
    """
    before, after = previous.instances, following.instances
    present = []
    for name, instance in after.items():
        old = before.get(name)
        if old is None:
            present.append(Change(name, Fate.ADDED, "not there before"))
        elif old.plugin is instance.plugin:
            present.append(Change(name, Fate.KEPT, "nothing that makes it up has changed"))
        else:
            present.append(Change(name, Fate.REBUILT, _reason(old, instance)))
    gone = [name for name in before if name not in after]
    return (*present, *(Change(name, Fate.REMOVED, "not there any more") for name in gone))


def _reason(old: Instance, new: Instance) -> str:
    if old.type != new.type:
        return f"its type was `{old.type}` and is `{new.type}`"
    if old.digest != new.digest:
        return "its source file has changed"
    if old.parameters != new.parameters:
        return "its parameters have changed"
    names = ", ".join(f"`{name}`" for name in new.depends_on) or "other plugins"
    return f"it refers to {names}, which changed"
