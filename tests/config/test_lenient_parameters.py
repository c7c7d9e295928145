"""Parameters that the Go EPP accepts although they are not exact: accepted here, with a warning.

Its plugins read their parameters with Go's ``encoding/json``, which matches names in any case. The
factories of types without parameters do not read them at all. An empty text is Go's value of a
text that is absent.
"""

import msgspec
import pytest
from config.graphs import HEAD

from epp.building import make_builder
from epp.config import ConfigError, PluginGraph, load_text
from epp.config.supported import TYPES_WITHOUT_PARAMETERS


def graph_of(*plugins: str) -> PluginGraph:
    return make_builder(0).build(load_text(f"{HEAD}plugins: [{', '.join(plugins)}]", "f"))


def of_parameters(graph: PluginGraph) -> list[str]:
    found = [each.text("f") for each in graph.warnings]
    return [text for text in found if "plugins[0].parameters" in text]


def test_names_in_another_case_are_read_with_a_warning() -> None:
    exact = graph_of("{type: prefix-cache-affinity-filter, parameters: {maxTTFTPenaltyMs: 5}}")
    graph = graph_of("{type: prefix-cache-affinity-filter, parameters: {maxTtftPenaltyMs: 5}}")
    name = "prefix-cache-affinity-filter"
    assert graph.instances[name].parameters == exact.instances[name].parameters
    (warning,) = of_parameters(graph)
    assert warning == (
        "f:3:61: plugins[0].parameters.maxTtftPenaltyMs: field `maxTtftPenaltyMs` is read as"
        " `maxTTFTPenaltyMs`; write it so"
    )
    assert of_parameters(exact) == []


def test_a_twin_of_a_shadow_profile_does_not_repeat_the_warning() -> None:
    text = (
        HEAD + "plugins: [{type: random-picker, parameters: {MaxNumOfEndpoints: 1}}]\n"
        "schedulingProfiles:\n"
        "- {name: real, plugins: [{pluginRef: random-picker}]}\n"
        "- {name: other, plugins: [{pluginRef: random-picker}]}\n"
        "extensions: {shadow: [{profile: other}]}\n"
    )
    graph = make_builder(0).build(load_text(text, "f"))
    assert "random-picker@other" in graph.instances
    assert len(of_parameters(graph)) == 1


@pytest.mark.parametrize("name", sorted(TYPES_WITHOUT_PARAMETERS))
def test_parameters_of_a_type_without_any_are_ignored_with_a_warning(name: str) -> None:
    entry = msgspec.json.encode({"type": name, "parameters": {"threshold": {"deep": 1}}}).decode()
    # The extractor writes what the multicluster scorers need.
    graph = graph_of(entry, "{type: multicluster-metrics-extractor}")
    (warning,) = of_parameters(graph)
    assert warning.endswith(
        "plugins[0].parameters.threshold: field `threshold` is unknown and has no effect"
    )


@pytest.mark.parametrize(
    "name", ["soft-reflective-ceiling-policy", "max-score-picker", "load-aware-scorer"]
)
def test_unknown_parameters_of_other_types_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown field `thrshold`"):
        graph_of(f"{{type: {name}, parameters: {{thrshold: 1}}}}")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("topology-affinity-filter", {"minAffinity": ""}),
        ("burst-prefix-cache-producer", {"balanceBy": ""}),
        ("program-aware-fairness", {"strategy": ""}),
        (
            "endpoint-attribute-filter",
            {
                "attribute": "x",
                "onMissing": "",
                "algorithm": {
                    "type": "threshold",
                    "threshold": {"operator": "LessThan", "value": 1},
                },
            },
        ),
    ],
)
def test_an_empty_choice_means_the_default(name: str, parameters: dict[str, object]) -> None:
    empty = graph_of(msgspec.json.encode({"type": name, "parameters": parameters}).decode())
    kept = {key: value for key, value in parameters.items() if value != ""}
    absent = graph_of(msgspec.json.encode({"type": name, "parameters": kept}).decode())
    assert empty.instances[name].parameters == absent.instances[name].parameters
