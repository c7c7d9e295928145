"""Twins: copies of randomized plugins for shadow profiles.

If a shadow profile shared a picker with a real profile, its draws from the random generator would
change the real decisions. So a plugin of a shadow profile that takes ``rng``, or refers to one that
does, is instantiated again for the shadow, with its own generator. Hooks are not called on twins,
nor on plugins that only shadow profiles use: they do not take part in real requests.
"""

from collections.abc import Mapping
from dataclasses import replace

from epp.config.instances import Instance, InstanceMaker, takes
from epp.config.plan import Plan


def twin_name(plan: Plan, scope: str, name: str) -> str:
    """Return the instance name of plugin ``name`` in ``scope`` (a shadow profile, or "")."""
    twin = f"{name}@{scope}"
    return twin if scope and twin in plan.blueprints else name


def add_twins(plan: Plan, maker: InstanceMaker) -> None:
    """Add the twins of every shadow profile to ``plan`` and instantiate them."""
    for profile in plan.profiles:
        if profile.name not in plan.shadows:
            continue
        members = [member.plugin_ref for member in profile.plugins]
        twins = []
        for name in dict.fromkeys(_with_references(members, maker)):
            if not _draws(name, plan, maker):
                continue
            twin = f"{name}@{profile.name}"
            if twin in plan.blueprints:
                path = plan.blueprints[twin].path
                plan.report(path, f"the name `{twin}` is taken for a shadow's plugin; rename it")
                continue
            twins.append(twin)
            original = plan.blueprints[name]
            plan.blueprints[twin] = replace(original, name=twin, scope=profile.name)
        for twin in twins:
            maker.make(twin)


def only_in_shadows(plan: Plan, instances: Mapping[str, Instance]) -> frozenset[str]:
    """Return the plugins that only shadow profiles use."""
    shadowed: set[str] = set()
    real: set[str] = set()
    for profile in plan.profiles:
        names = shadowed if profile.name in plan.shadows else real
        names.update(member.plugin_ref for member in profile.plugins)
    referred = {name for each in instances.values() for name in each.depends_on}
    return frozenset(shadowed - real - referred)


def _with_references(names: list[str], maker: InstanceMaker) -> list[str]:
    """Return ``names`` and everything that they refer to, directly or indirectly."""
    found = [name for name in names if name in maker.instances]
    for name in found:  # grows
        found.extend(n for n in maker.instances[name].depends_on if n not in found)
    return found


def _draws(name: str, plan: Plan, maker: InstanceMaker) -> bool:
    blueprint = plan.blueprints[name]
    if blueprint.found is not None and takes(blueprint.found.plugin, "rng"):
        return True
    return any(_draws(other, plan, maker) for other in maker.instances[name].depends_on)
