"""Any configuration is built completely or refused with its problems; a rebuild keeps instances."""

from typing import Any

import msgspec
import yaml
from config.graphs import HEAD, PLUGINS, make_builder
from hypothesis import given
from hypothesis import strategies as st

from epp.config import ConfigError, Fate, LoadedConfig, PluginGraph, changes, load_text
from epp.scheduling import SchedulingError
from epp.testing import make_endpoint, make_request

BUILDER = make_builder()
NAMES = ("a", "b", "c", "d", "second-producer")
TYPES = tuple(
    [each.type for each in PLUGINS if each.type not in {"circular-producer", "orphan-scorer"}] * 3
    + ["circular-producer", "orphan-scorer", "max-score-picker", "nope"]
)


def entry(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """An entry of ``plugins``, mostly with parameters that its type takes."""
    sizes = st.sampled_from([{}, {"size": 1}, {"size": 2}, {"size": 2}, {"size": -1}])
    to = st.sampled_from(NAMES).map(lambda other: {"to": other})
    return st.sampled_from(TYPES).flatmap(
        lambda type_: st.fixed_dictionaries(
            {
                "type": st.just(type_),
                "name": st.just(name),
                "parameters": to if type_ == "wrapping-filter" else sizes,
            }
        )
    )


plugins = st.sets(st.sampled_from(NAMES), min_size=1, max_size=5).flatmap(
    lambda names: st.tuples(*(entry(name) for name in sorted(names))).map(list)
)


def document_of(entries: list[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A configuration of these plugins, with up to two profiles of some of them."""
    refs = st.sampled_from([each["name"] for each in entries])
    profiles = st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["x", "y"]),
                "plugins": st.lists(refs, max_size=3, unique=True).map(
                    lambda names: [{"pluginRef": name} for name in names]
                ),
            }
        ),
        max_size=2,
        unique_by=lambda profile: str(profile["name"]),
    )
    return st.fixed_dictionaries(
        {"plugins": st.just(entries), "schedulingProfiles": profiles},
        optional={"extensions": st.just({"shadow": [{"profile": "y"}]})},
    )


documents = plugins.flatmap(document_of)


def loaded(document: dict[str, Any]) -> LoadedConfig | None:
    """Load what is sound; a reference to nothing is the loader's to refuse."""
    try:
        return load_text(HEAD + yaml.safe_dump(document), "test.yaml")
    except ConfigError:
        return None


def built(config: LoadedConfig, previous: PluginGraph | None = None) -> PluginGraph | None:
    """Build it; None if it is refused, with the place of every problem."""
    try:
        return BUILDER.build(config, previous)
    except ConfigError as error:
        refused = error
    assert refused.problems
    assert all(problem.line > 0 and problem.message for problem in refused.problems)
    assert len(set(refused.problems)) == len(refused.problems)
    return None


@given(documents)
def test_graph_is_whole_or_refused_and_building_it_again_keeps_every_instance(
    document: dict[str, Any],
) -> None:
    config = loaded(document)
    graph = None if config is None else built(config)
    if graph is None or config is None:
        return
    assert {entry["name"] for entry in document["plugins"]} <= set(graph.plugins)
    written: set[object] = set()
    for plugin in graph.plugins.values():
        assert set(getattr(plugin, "reads", ())) <= written
        written |= set(getattr(plugin, "writes", ()))
    try:
        result = graph.scheduler.schedule(make_request(), [make_endpoint("e"), make_endpoint("f")])
        assert result.endpoints
    except SchedulingError:
        pass
    again = built(config, graph)
    assert again is not None
    assert {each.fate for each in changes(graph, again)} <= {Fate.KEPT}
    effective = load_text(yaml.safe_dump(msgspec.to_builtins(graph.effective)), "effective")
    same = built(effective, graph)
    assert same is not None
    assert {each.fate for each in changes(graph, same)} <= {Fate.KEPT}


@given(documents, documents)
def test_kept_instance_is_what_a_new_one_would_be(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    first, second = loaded(before), loaded(after)
    old = None if first is None else built(first)
    if old is None or second is None:
        return
    new, fresh = built(second, old), built(second)
    assert (new is None) == (fresh is None)
    if new is None or fresh is None:
        return
    assert list(new.instances) == list(fresh.instances)
    for name, each in new.instances.items():
        twin = fresh.instances[name]
        assert (each.type, each.parameters) == (twin.type, twin.parameters)
        assert each.depends_on == twin.depends_on
        for other in each.depends_on:
            inner = getattr(each.plugin, "inner", None)
            assert inner is new.instances[other].plugin
