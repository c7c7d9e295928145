"""The request parsers and their order: ``requestHandler.parsers``.

A reference is the name of an entry of ``plugins`` or an installed plugin type, which needs no
entry. An empty list means :data:`~epp.config.supported.DEFAULT_PARSERS`.
"""

from collections.abc import Iterator

from epp.config.fault_texts import suggestion
from epp.config.plan import Kinds, Plan, add_default
from epp.config.registry import PluginRegistry
from epp.config.supported import DEFAULT_PARSERS
from epp.scheduling import Plugin


def add_parsers(plan: Plan, registry: PluginRegistry, kinds: Kinds) -> None:
    """Add the parsers to ``plan``, with a warning for each that is never used."""
    kind = kinds.get("parser")
    if kind is None:
        return
    names: list[str] = []
    fallback = ""
    types: dict[str, str] = {}
    for path, name in _listed(plan, registry, kind):
        if not plan.may_be(name, kind):
            plan.report(path, f"`{name}` ({plan.type_of(name)}) is no parser")
            continue
        plugin_type = plan.blueprints[name].type
        if name in names:
            why = "it is listed before"
        elif plugin_type in types:
            why = f"`{types[plugin_type]}` of the same type is listed before it"
        elif fallback:
            why = f"`{fallback}` before it takes every request that no other parser claims"
        else:
            why = ""
        if why:
            plan.warn(path, f"`{name}` is never used here: {why}")
            continue
        names.append(name)
        types[plugin_type] = name
        found = plan.blueprints[name].found
        if found is not None and not getattr(found.plugin, "claims", ()):
            fallback = name
    plan.parsers = tuple(names)


def _listed(plan: Plan, registry: PluginRegistry, kind: type[Plugin]) -> Iterator[tuple[str, str]]:
    """Yield the path and name of each listed parser, or of the default ones if none is listed."""
    section = plan.config.file.request_handler.parsers
    if not section:
        for plugin_type in DEFAULT_PARSERS:
            yield "requestHandler", add_default(plan, registry, plugin_type)
        return
    for path, ref in zip(_places(plan), section, strict=True):
        name = ref.plugin_ref
        if name in plan.blueprints:
            yield path, name
        elif name in registry:
            if issubclass(registry.get(name), kind):
                yield path, add_default(plan, registry, name)
            else:
                plan.report(path, f"`{name}` is no parser")
        else:
            known = dict.fromkeys(
                [*plan.named(kind), *(each.type for each in registry if issubclass(each, kind))]
            )
            plan.report(path, f"no parser is named `{name}`; {suggestion(name, known)}")


def _places(plan: Plan) -> list[str]:
    """Return the paths of the references in the file.

    The loader moves the deprecated ``parser`` to ``requestHandler``; its path is the old one.
    """
    count = len(plan.config.file.request_handler.parsers)
    written = plan.config.document.root.value
    section = written.get("requestHandler") if isinstance(written, dict) else None
    if isinstance(section, dict) and section.get("parsers"):
        return [f"requestHandler.parsers[{place}].pluginRef" for place in range(count)]
    return ["parser.pluginRef"]
