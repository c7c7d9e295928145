"""Plugin types that the reference calls Alpha need an explicit permission."""

import pytest
from config.graphs import HEAD

from epp.building import make_builder
from epp.config import ConfigError, Experimental, PluginGraph, load_text
from epp.config.supported import ALPHA_TYPES, DEPRECATED_TYPES, OLD_TYPES

ALPHA = """\
plugins:
- {type: agent-identity, name: agents}
- {type: queue-scorer}
- {type: topology-extractor}
"""
ALLOWED = "extensions: {allowExperimentalPlugins: true}\n"
EVICTION = "featureGates: [flowControl]\nflowControl: {enableEviction: true}\n"


def build(text: str, experimental: Experimental = "refuse") -> PluginGraph:
    return make_builder(0, experimental=experimental).build(load_text(HEAD + text, "f"))


def test_every_alpha_type_is_refused_with_its_place_and_both_ways_to_allow_it() -> None:
    with pytest.raises(ConfigError) as caught:
        build(ALPHA)
    ways = (
        "; allow it with the flag --allow-experimental-plugins or with"
        " `extensions.allowExperimentalPlugins: true`"
    )
    kind = "the experimental (Alpha) plugin type"
    assert str(caught.value).splitlines() == [
        f"f:4:10: plugins[0].type: `agents` is of {kind} `agent-identity`{ways}",
        f"f:6:10: plugins[2].type: this is {kind} `topology-extractor`{ways}",
    ]


def test_flag_and_configuration_allow_them_without_a_word() -> None:
    for graph in (build(ALPHA, "allow"), build(ALPHA + ALLOWED)):
        assert "agents" in graph.plugins
        assert not [each for each in graph.warnings if "Alpha" in each.message]


def test_a_check_warns() -> None:
    warned = [each for each in build(ALPHA, "warn").warnings if "Alpha" in each.message]
    assert [each.path for each in warned] == ["plugins[0].type", "plugins[2].type"]


def test_policies_of_evictions_that_no_file_names_are_no_choice_of_its_author() -> None:
    graph = build(EVICTION)
    assert "sheddable-eviction-filter" in graph.plugins
    with pytest.raises(ConfigError, match="Alpha"):
        build("plugins: [{type: sheddable-eviction-filter}]\n" + EVICTION)


def test_types_with_another_rank_are_not_among_them() -> None:
    assert not ALPHA_TYPES & (DEPRECATED_TYPES.keys() | OLD_TYPES.keys())
