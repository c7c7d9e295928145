"""The parameters that a search varies by default: weights of scorers, and thresholds.

The weights are those of the scorers of the primary profile (`primary_profile`), between 0 and 10
on a logarithmic scale, because only their ratios count. Thresholds are the parameters of the
profile's plugins whose names contain "threshold": fractions between 0 and 1, others between an
eighth of the value in use and four times that value.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from epp.building import make_builder
from epp.config import LoadedConfig, PluginGraph
from epp.config.instances import close_all
from epp.config.plugin_checks import params_of
from epp.lab.tuning.domains import Domain, Range
from epp.lab.tuning.errors import TuningError
from epp.lab.tuning.parameters import Parameter
from epp.lab.tuning.places import find_place
from epp.lab.tuning.primary_profile import primary_profile
from epp.scheduling import Scorer

_WEIGHTS = Range(0, 10, is_log=True)
_LEAST, _MOST = 1 / 8, 4


def default_parameters(config: LoadedConfig) -> list[Parameter]:
    """Return the parameters to vary.

    Raises:
        ConfigError: The configuration is invalid.
        TuningError: It has no such parameter.
    """
    graph = make_builder().build(config)
    try:
        found = list(_parameters(config, graph))
    finally:
        close_all(graph.plugins.values())
    if not found:
        raise TuningError(
            f"{config.source}: has neither several scorers in a profile nor a threshold; say what"
            " to vary with --vary PATH=VALUES"
        )
    return found


def _parameters(config: LoadedConfig, graph: PluginGraph) -> Iterator[Parameter]:
    document = config.document.root.value
    profiles = document.get("schedulingProfiles") or []
    if not profiles:
        return
    index = _primary(profiles, graph)
    members = profiles[index].get("plugins") or []
    names = [each["pluginRef"] for each in members]
    scorers = [at for at, name in enumerate(names) if isinstance(graph.plugins.get(name), Scorer)]
    if len(scorers) > 1:  # the weight of a single scorer changes nothing
        for at in scorers:
            path = f"schedulingProfiles[{index}].plugins[{at}].weight"
            yield Parameter(find_place(document, path), _WEIGHTS)
    for at, entry in enumerate(document.get("plugins") or []):
        name = entry.get("name") or entry["type"]
        if name not in names or name not in graph.plugins:
            continue
        given = entry.get("parameters") or {}
        for field, domain in _thresholds(params_of(type(graph.plugins[name])), given):
            yield Parameter(find_place(document, f"plugins[{at}].parameters.{field}"), domain)


def _primary(profiles: list[Mapping[str, Any]], graph: PluginGraph) -> int:
    """Return the index of the primary profile; of the first one if the handler cannot say."""
    names = [each.get("name") for each in profiles]
    primary = primary_profile(graph.scheduler)
    return names.index(primary) if primary in names else 0


def _thresholds(
    params: type[msgspec.Struct], given: Mapping[str, Any]
) -> Iterator[tuple[str, Domain]]:
    for field in msgspec.structs.fields(params):
        if "threshold" not in field.name:
            continue
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        value = given.get(field.encode_name, default)
        # 0 or a negative number turns something off.
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            continue
        if isinstance(default, float) and value <= 1:
            yield field.encode_name, Range(0, 1)
        else:
            low = max(1, round(value * _LEAST)) if isinstance(default, int) else value * _LEAST
            yield (
                field.encode_name,
                Range(low, value * _MOST, is_log=True, is_whole=isinstance(default, int)),
            )
