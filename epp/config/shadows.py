"""Twins: what a shadow profile uses in place of plugins that draw from a random generator.

A picker that the real and the shadow profile shared would draw for both, and every real decision
after the first would be another one than without the shadow. So a plugin of a shadow profile that
asks for ``rng``, or refers to one that does, is made a second time for it, with a generator of its
own. Twins serve no other extension point: no hook is told of a shadow's pick. Nor is a plugin told
of real picks that only shadow profiles name: it would act on requests that it has no part in.
"""

from collections.abc import Mapping
from dataclasses import replace

from epp.config.instances import Instance, InstanceMaker, takes
from epp.config.plan import Plan


def twin_name(plan: Plan, scope: str, name: str) -> str:
    """Return the name by which a profile of ``scope`` (a shadow, or "") finds plugin ``name``."""
    twin = f"{name}@{scope}"
    return twin if scope and twin in plan.blueprints else name


def add_twins(plan: Plan, maker: InstanceMaker) -> None:
    """Add the twins of every shadow profile to ``plan``, and make them."""
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
    """Return the plugins of profiles that no profile names but shadows."""
    shadowed: set[str] = set()
    real: set[str] = set()
    for profile in plan.profiles:
        names = shadowed if profile.name in plan.shadows else real
        names.update(member.plugin_ref for member in profile.plugins)
    referred = {name for each in instances.values() for name in each.depends_on}
    return frozenset(shadowed - real - referred)


def _with_references(names: list[str], maker: InstanceMaker) -> list[str]:
    """Return ``names`` and everything that they refer to, near and far."""
    found = [name for name in names if name in maker.instances]
    for name in found:  # grows
        found.extend(n for n in maker.instances[name].depends_on if n not in found)
    return found


def _draws(name: str, plan: Plan, maker: InstanceMaker) -> bool:
    blueprint = plan.blueprints[name]
    if blueprint.found is not None and takes(blueprint.found.plugin, "rng"):
        return True
    return any(_draws(other, plan, maker) for other in maker.instances[name].depends_on)
