"""Gate for plugin types that the Go EPP marks as Alpha.

The Go EPP refuses them without ``--allow-experimental-plugins``. Here the configuration may also
allow them, with ``extensions.allowExperimentalPlugins``. Types that only this project has and
plugin files are never refused.
"""

from collections.abc import Iterator
from typing import Final, Literal

from epp.config.plan import Plan
from epp.config.supported import ALPHA_TYPES, DEFAULT_EVICTION_POLICIES

FLAG: Final = "--allow-experimental-plugins"
FIELD: Final = "extensions.allowExperimentalPlugins"


Experimental = Literal["allow", "warn", "refuse"]
"""How to treat a configuration that uses Alpha types without allowing them."""


def report_experimental(plan: Plan, experimental: Experimental) -> None:
    """Report each plugin of an Alpha type, as a problem or as a warning."""
    if experimental == "allow":
        return
    for path, message in _experimental(plan):
        if experimental == "refuse":
            plan.report(path, message)
        else:
            plan.warn(path, message)


def _experimental(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.config.file.extensions.allow_experimental_plugins:
        return
    for name, blueprint in plan.blueprints.items():
        # The Go EPP uses these two eviction policies by default without asking for the flag.
        is_ours = not blueprint.path and blueprint.type in DEFAULT_EVICTION_POLICIES
        if blueprint.type not in ALPHA_TYPES or blueprint.scope or is_ours:
            continue
        what = f"`{name}` is of" if name != blueprint.type else "this is"
        path = f"{blueprint.path}.type" if blueprint.path else ""
        text = (
            f"{what} the experimental (Alpha) plugin type `{blueprint.type}`; allow it with the"
            f" flag {FLAG} or with `{FIELD}: true`"
        )
        yield path, text
