"""Order plugins by data keys: the writer of a key comes before its readers.

A key that is read but not written gets its default producer, and so do the keys that this producer
reads.
"""

from collections.abc import Mapping
from typing import Any

from epp.config.instances import Instance, InstanceMaker
from epp.config.plan import Plan, add_default
from epp.config.registry import PluginRegistry
from epp.scheduling import AttributeKey, Plugin


def add_producers(plan: Plan, registry: PluginRegistry, maker: InstanceMaker) -> None:
    """Add the default producers of unwritten keys to ``plan`` and instantiate them."""
    wanted = [(key, name) for name, each in maker.instances.items() for key in _keys(each, "reads")]
    written = {key for each in maker.instances.values() for key in _keys(each, "writes")}
    for key, reader in wanted:  # grows: producers read keys, too
        if key in written:
            continue
        written.add(key)  # handle each key once, found or not
        path = plan.blueprints[reader].path
        default = registry.default_for(key)
        if default is None:
            # The key of a named producer ends in its name; if that plugin is invalid, that has
            # been reported.
            producer = key.name.rpartition("/")[2]
            if producer not in plan.blueprints or producer in maker.instances:
                text = f"`{reader}` reads `{key.name}`, which no plugin produces"
                plan.report(path, f"{text}; {_mend(key, registry)}")
            continue
        if default in plan.blueprints:
            if plan.blueprints[default].found is not None and default in maker.instances:
                plan.report(
                    path, f"`{reader}` reads `{key.name}`, which plugin `{default}` does not write"
                )
            continue
        instance = maker.make(add_default(plan, registry, default))
        if instance is not None:
            written.update(_keys(instance, "writes"))
            wanted.extend((each, default) for each in _keys(instance, "reads"))


def warn_of_keys(plan: Plan, instances: Mapping[str, Instance]) -> None:
    """Add a warning for each endpoint attribute that is read but never written, and vice versa.

    An attribute that nothing writes is probably misspelt. Request values are not checked: they may
    exist for some requests only. A producer with a name of its own is reported if no plugin reads
    its key.
    """
    written = {key for each in instances.values() for key in _keys(each, "writes")}
    read = {
        key
        for each in instances.values()
        for which in ("reads", "optional_reads")
        for key in _keys(each, which)
    }
    for name, blueprint in plan.blueprints.items():
        if not blueprint.path or blueprint.scope or name not in instances:
            continue
        own, defaults = _keys(instances[name], "writes"), _keys(instances[name], "default_for")
        if defaults and read.isdisjoint(own) and own != defaults:
            keys = ", ".join(f"`{key.name}`" for key in own)
            text = f"`{name}` produces {keys}, which no plugin reads: none names this producer"
            plan.warn(blueprint.path, text)
        for key in _keys(instances[name], "optional_reads"):
            if isinstance(key, AttributeKey) and key not in written:
                text = (
                    f"`{name}` looks for the endpoint attribute `{key.name}`, which nobody writes"
                )
                plan.warn(blueprint.path, text)


def ordered(plan: Plan, instances: Mapping[str, Instance]) -> dict[str, Plugin]:
    """Return the plugins in the plan's order, but with the writers of a key before its readers."""
    done: dict[str, Plugin] = {}
    visiting: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in visiting:
            circle = " -> ".join([*visiting[visiting.index(name) :], name])
            plan.report(plan.blueprints[name].path, f"plugins wait for each other's data: {circle}")
            return
        visiting.append(name)
        for which in ("reads", "optional_reads"):
            needs = _keys(instances[name], which)
            for other in order:
                if other != name and any(key in needs for key in _keys(instances[other], "writes")):
                    visit(other)
        visiting.pop()
        done.setdefault(name, instances[name].plugin)

    order = [name for name in plan.blueprints if name in instances]
    for name in order:
        visit(name)
    return done


def _mend(key: object, registry: PluginRegistry) -> str:
    writers = [each.type for each in registry if key in getattr(each, "writes", ())]
    if writers:
        return "add a plugin of type " + " or ".join(f"`{each}`" for each in writers)
    return "if it is a producer's name that was misspelt, correct it"


def _keys(instance: Instance, which: str) -> tuple[Any, ...]:
    keys: tuple[Any, ...] = getattr(instance.plugin, which, ())
    return keys
