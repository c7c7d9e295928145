"""Build the scheduler, its profiles and their shadows from a valid plan and its instances."""

import random
from collections.abc import Callable, Iterable, Mapping

from epp.config.instances import Instance
from epp.config.plan import Plan
from epp.config.schema import ProfileEntry
from epp.config.shadows import twin_name
from epp.scheduling import (
    Filter,
    GuardRails,
    NullObserver,
    Picker,
    Plugin,
    PluginObserver,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    Scheduler,
    SchedulerProfile,
    Scorer,
    ShadowProfile,
    WeightedScorer,
)

MakeRandom = Callable[[str], random.Random]
"""Returns the random generator for a component's name."""


def guard_rails(plan: Plan, observer: PluginObserver | None) -> GuardRails:
    """Return the guard rails configured by ``extensions.guardRails``."""
    rails = plan.config.file.extensions.guard_rails
    policies = {name: policy == "open" for name, policy in rails.failure_policy.items()}
    twins = {
        twin_name(plan, shadow, name): is_open
        for shadow in plan.shadows
        for name, is_open in policies.items()
    }
    return GuardRails(
        observer=observer or NullObserver(),
        fails_open=twins | policies,
        disable_after=rails.disable_after,
    )


def make_profiles(
    plan: Plan, instances: Mapping[str, Instance], guards: GuardRails, make_random: MakeRandom
) -> dict[str, SchedulerProfile]:
    """Return all profiles by name, shadows included."""
    return {
        # Shadows have separate guards, so that failures there disable no plugin of a real profile.
        entry.name: _profile(
            plan,
            entry,
            instances,
            guards.apart() if entry.name in plan.shadows else guards,
            make_random,
        )
        for entry in plan.profiles
    }


def make_scheduler(
    plan: Plan,
    handler: Plugin,
    hooks: Iterable[Plugin],
    profiles: Mapping[str, SchedulerProfile],
    guards: GuardRails,
) -> Scheduler:
    """Return the scheduler of the real profiles."""
    assert isinstance(handler, ProfileHandler)  # noqa: S101 - checked by the plan
    return Scheduler(
        handler,
        {name: profile for name, profile in profiles.items() if name not in plan.shadows},
        pre_schedule=[hook for hook in hooks if isinstance(hook, PreSchedule)],
        post_schedule=[hook for hook in hooks if isinstance(hook, PostSchedule)],
        guards=guards,
    )


def make_shadows(
    plan: Plan, profiles: Mapping[str, SchedulerProfile], make_random: MakeRandom
) -> tuple[ShadowProfile, ...]:
    """Return the shadow profiles in the order of ``extensions.shadow``."""
    return tuple(
        ShadowProfile(
            profiles[shadow.profile],
            sample=shadow.sample,
            budget_seconds=shadow.budget_ms / 1000,
            rng=make_random(f"shadow {shadow.profile}"),
        )
        for shadow in plan.config.file.extensions.shadow
    )


def _profile(
    plan: Plan,
    entry: ProfileEntry,
    instances: Mapping[str, Instance],
    guards: GuardRails,
    make_random: MakeRandom,
) -> SchedulerProfile:
    scope = entry.name if entry.name in plan.shadows else ""
    members = [
        (instances[twin_name(plan, scope, member.plugin_ref)].plugin, member.weight)
        for member in entry.plugins
    ]
    (picker,) = (plugin for plugin, _ in members if isinstance(plugin, Picker))
    return SchedulerProfile(
        name=entry.name,
        filters=[plugin for plugin, _ in members if isinstance(plugin, Filter)],
        scorers=[
            WeightedScorer(plugin, 1.0 if weight is None else weight)
            for plugin, weight in members
            if isinstance(plugin, Scorer)
        ],
        picker=picker,
        guards=guards,
        rng=make_random(f"profile {entry.name}"),
    )
