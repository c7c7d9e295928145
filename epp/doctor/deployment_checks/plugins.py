"""Checks of the consequences of plugin failures, and of plugins that have failed."""

from collections.abc import Collection, Iterator
from typing import Final

from epp.config import PluginGraph
from epp.doctor.check import Check
from epp.doctor.deployment import Deployment
from epp.doctor.deployment_checks import give
from epp.doctor.findings import Finding, error, note, set_to, warning
from epp.request_control.plugins import Admitter, Producer, Screener
from epp.scheduling import Filter, Picker, Plugin, ProfileHandler, Scorer

_POLICY: Final = "extensions.guardRails.failurePolicy"
_RARE: Final = 0.01
_OPEN: Final[tuple[tuple[type[Plugin], str, str], ...]] = (
    (Filter, "filters", "pass all endpoints"),
    (Scorer, "scorers", "add nothing"),
    (Picker, "pickers", "the best score is picked"),
    (Producer, "producers", "their data are missing"),
    (Screener, "screeners", "screen out nothing"),
    (Admitter, "admitters", "admit all requests"),
)
"""Plugins whose failure does not fail requests: class, name, and effect."""


def _policies(deployment: Deployment) -> Iterator[Finding]:
    if deployment.graph is None:
        return
    opens = _failing_open(deployment.graph)
    for name, (plugin, is_open) in opens.items():
        if is_open and not type(plugin).fails_open:
            yield warning(
                f"{_POLICY}.{name}",
                f"{name} ({plugin.type}) fails open, though its type fails closed",
                "While it fails, requests go to endpoints from which it is to keep them",
                f"Set {_POLICY}.{name}: closed",
                set_to(f"{_POLICY}.{name}", "closed", is_of_config=True),
            )
    closed = [name for name, (_, is_open) in opens.items() if not is_open]
    if closed:
        yield note(
            _POLICY,
            f"fail closed: {', '.join(closed)}. While one fails, it passes no endpoint, and the"
            " requests of its profiles are answered with 500",
        )
    effects = [
        f"{what} {', '.join(names)} ({effect})"
        for kind, what, effect in _OPEN
        if (names := [each.name for each in _of(deployment.graph, kind, but=closed)])
    ]
    limit = deployment.graph.config.file.extensions.guard_rails.disable_after
    if effects:
        yield note(
            _POLICY,
            f"fail open: {'; '.join(effects)}. After {limit} failures in a row a plugin is off"
            " until a reload",
        )
    for handler in _of(deployment.graph, ProfileHandler):
        yield note(
            handler.name, "while it fails, requests are answered with 500: nothing else can decide"
        )


def _of(graph: PluginGraph, kind: type[Plugin], but: Collection[str] = ()) -> Iterator[Plugin]:
    return (each for each in graph.implementing(kind) if each.name not in but)


def _failing_open(graph: PluginGraph) -> dict[str, tuple[Filter, bool]]:
    """Return each filter, and whether it fails open."""
    chosen = graph.config.file.extensions.guard_rails.failure_policy
    found = {}
    for name, plugin in graph.plugins.items():
        if isinstance(plugin, Filter):
            policy = chosen.get(name, "open" if plugin.fails_open else "closed")
            found[name] = plugin, policy == "open"
    return found


def _failures(deployment: Deployment) -> Iterator[Finding]:
    picker = deployment.picker
    for line in () if picker is None or picker.plugins is None else picker.plugins.plugins:
        where = f"{line.name} ({line.extension_point})"
        if line.disabled:
            yield error(
                where,
                f"disabled after {line.failures} failures",
                "Requests are decided without it until the next reload",
                "See `plugin failed` in the log of the EPP, mend the cause, and reload",
            )
        elif line.failures:
            yield warning(
                where,
                f"{line.failures} of {line.calls} calls failed",
                "These requests were decided without it",
                "See `plugin failed` in the log of the EPP",
            )
        if line.overruns > _RARE * line.calls:
            yield warning(
                where,
                f"{line.overruns} of {line.calls} calls took longer than slowCallMs",
                "All requests wait while a plugin computes",
                "See epp explain plugins for its times, and docs/performance.md",
            )


def _in_use(deployment: Deployment) -> Iterator[Finding]:
    picker, graph = deployment.picker, deployment.graph
    if picker is None or picker.config is None:
        return
    last = picker.config.last_reload
    if last is not None and last.result in {"failure", "rollback"}:
        yield error(
            picker.config.source,
            f"the last reload was a {last.result}: {last.problem}",
            "The EPP runs with the configuration before it, and will not start with this one",
            "Mend the file; epp config check FILE names all its problems",
        )
    if (
        deployment.is_config_given
        and graph is not None
        and picker.config.digest != graph.config.digest
    ):
        yield warning(
            graph.config.source,
            "the running EPP has another configuration",
            "What was found in the file does not hold for it",
            "Give the file that it uses, or have it reload: epp explain config",
        )


CHECKS = (
    Check(
        "plugin-policy",
        _policies,
        "there are no plugins",
        lambda deployment: deployment.graph is not None,
        give.CONFIG,
    ),
    Check(
        "plugin-failures",
        _failures,
        "no plugin has failed",
        lambda deployment: deployment.picker is not None and deployment.picker.plugins is not None,
        give.EPP,
    ),
    Check(
        "config-in-use",
        _in_use,
        "no reload has failed, and no other file was given",
        lambda deployment: deployment.picker is not None and deployment.picker.config is not None,
        give.EPP,
    ),
)
