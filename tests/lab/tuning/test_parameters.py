"""Variations: paths, domains, errors, and configurations with other values."""

import pytest

from epp.building import make_builder
from epp.config import load_text
from epp.config.instances import close_all
from epp.lab.tuning import (
    TuningError,
    check_distinct,
    default_parameters,
    make_candidates,
    parse_variation,
    primary_profile,
)
from epp.lab.tuning.domains import Choices, Range
from epp.lab.tuning.parameters import with_values

CONFIG = """\
# Our fleet.
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- {type: load-aware-scorer, name: load, parameters: {threshold: 64}}
- type: prefix-cache-affinity-filter  # sticky
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: queue-scorer, weight: 2}  # half of it
  - pluginRef: load
"""


def parsed(text: str) -> tuple[str, str, object]:
    found = parse_variation(text, load_text(CONFIG, "c"))
    return found.place.path, found.name, found.domain


@pytest.mark.parametrize(
    ("text", "path", "name"),
    [
        (
            "schedulingProfiles[0].plugins[1].weight=0..5",
            "schedulingProfiles[0].plugins[1].weight",
            "queue-scorer weight",
        ),
        (
            "schedulingProfiles[name=default].plugins[pluginRef=load].weight=0..5",
            "schedulingProfiles[0].plugins[2].weight",
            "load weight",
        ),
        (
            "plugins[name=load].parameters.threshold=1,2",
            "plugins[1].parameters.threshold",
            "load threshold",
        ),
        (
            "plugins[name=prefix-cache-affinity-filter].parameters.affinityThreshold=0.1,0.9",
            "plugins[2].parameters.affinityThreshold",
            "prefix-cache-affinity-filter affinityThreshold",
        ),
    ],
    ids=["indices", "fields, and a weight that is left out", "a name", "no name, no parameters"],
)
def test_a_path_names_a_field(text: str, path: str, name: str) -> None:
    assert parsed(text)[:2] == (path, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "plugins[7].parameters.x=1,2",
            r"no \[7\]; plugins has \[0\] \(queue-scorer\), \[1\] \(load\)",
        ),
        (
            "plugins[name=q].parameters.x=1,2",
            r"no item has name=q; plugins has \[name=queue-scorer\]",
        ),
        ("profiles[0].plugins=1,2", "no `profiles`; there are apiVersion, kind, plugins"),
        ("plugins[0].wait=1,2", r"no `wait`; plugins\[0\] has type"),
        ("plugins[1].parameters=1,2", r"is a mapping, not a value; .* has threshold"),
        ("kind[0]=1,2", "kind is no list"),
        ("plugins[0=1,2", "no PATH=VALUES"),
        ("plugins[x]=1,2", r"'\[x\]' is not understood"),
        ("=1,2", "the path is empty"),
        ("plugins[1].parameters.threshold=", "a value is empty"),
        ("plugins[1].parameters.threshold=5", "one value, so that nothing varies"),
        ("plugins[1].parameters.threshold=5..1", "the range is empty"),
        ("plugins[1].parameters.threshold=5..5", "nothing varies"),
        ("plugins[1].parameters.threshold=a..b", "'a' is not a number"),
        ("plugins[1].parameters.threshold=0..inf", "'inf' is not a number"),
        ("plugins[1].parameters.threshold=1..5:big", "big is not one of int, log"),
        ("plugins[1].parameters.threshold=-1..5:log", "begins at 0 or above"),
        ("plugins[1].parameters.threshold=0.5..5:int", "must be whole"),
    ],
)
def test_a_variation_that_names_nothing_says_what_exists(text: str, message: str) -> None:
    with pytest.raises(TuningError, match=message):
        parsed(text)


def test_a_field_is_varied_once() -> None:
    config = load_text(CONFIG, "c")
    twice = ["plugins[1].parameters.threshold=1,2", "plugins[name=load].parameters.threshold=3,4"]
    with pytest.raises(TuningError, match="varied twice"):
        check_distinct([parse_variation(each, config) for each in twice])


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (Range(0, 5), [0, 1.25, 2.5, 3.75]),
        (Range(1, 16, is_log=True), [1, 2, 4, 8]),
        (Range(0, 3, is_whole=True), [0, 1, 2, 3]),
        (Choices(["a", True, 3, 0.5]), ["a", True, 3, 0.5]),
    ],
    ids=str,
)
def test_positions_cover_a_domain(domain: Range | Choices, values: list[object]) -> None:
    assert [domain.at(at / 4) for at in range(4)] == values


def test_a_logarithmic_range_from_0_has_0_and_small_numbers() -> None:
    values = [float(Range(0, 10, is_log=True).at(at / 60)) for at in range(60)]
    assert values.count(0) == 10
    assert sorted(values) == values
    assert 0.09 < values[10] < 0.11
    assert 1 / 3 < sum(0 < each < 1 for each in values) / 50 < 2 / 3


def test_a_whole_number_stays_whole_but_a_weight_does_not() -> None:
    assert parsed("plugins[1].parameters.threshold=1..9")[2] == Range(1, 9, is_whole=True)
    assert parsed("schedulingProfiles[0].plugins[1].weight=1..9")[2] == Range(1, 9)


def test_values_are_written_where_they_stand() -> None:
    config = load_text(CONFIG, "c")
    variations = [
        "schedulingProfiles[0].plugins[1].weight=1,2",
        "schedulingProfiles[0].plugins[2].weight=1,2",
        "plugins[1].parameters.threshold=1,2",
        "plugins[2].parameters.affinityThreshold=0.1,0.9",
    ]
    parameters = [parse_variation(each, config) for each in variations]
    assert with_values(CONFIG, parameters, [0.5, 7, 9, 0.25]) == (
        CONFIG.replace("weight: 2", "weight: 0.5")
        .replace("pluginRef: load", "pluginRef: load\n    weight: 7")
        .replace("threshold: 64", "threshold: 9")
        .replace("# sticky", "# sticky\n  parameters: {affinityThreshold: 0.25}")
        .replace(
            "parameters: {affinityThreshold: 0.25}", "parameters:\n    affinityThreshold: 0.25"
        )
    )


def test_a_value_behind_an_alias_is_not_changed() -> None:
    shared = "- {type: load-aware-scorer, name: other, parameters: &p {threshold: 64}}\n"
    text = CONFIG.replace("parameters: {threshold: 64}", "parameters: *p")
    text = text.replace("- {type: load", shared + "- {type: load")
    parameter = parse_variation("plugins[name=load].parameters.threshold=1,2", load_text(text, "c"))
    with pytest.raises(TuningError, match="an alias repeats it in another place; write it out"):
        with_values(text, [parameter], [1])


def test_by_default_weights_and_thresholds_vary() -> None:
    found = default_parameters(load_text(CONFIG, "c"))
    assert [(each.place.path, each.domain) for each in found] == [
        ("schedulingProfiles[0].plugins[1].weight", Range(0, 10, is_log=True)),
        ("schedulingProfiles[0].plugins[2].weight", Range(0, 10, is_log=True)),
        ("plugins[1].parameters.threshold", Range(8, 256, is_log=True, is_whole=True)),
        ("plugins[2].parameters.affinityThreshold", Range(0, 1)),
    ]


DISAGGREGATED = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: running-requests-size-scorer
- type: prefill-filter
- type: decode-filter
- type: disagg-profile-handler
  parameters:
    profiles: {prefill: default, decode: answers}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: prefill-filter
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: running-requests-size-scorer, weight: 1}
- name: answers
  plugins:
  - pluginRef: decode-filter
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: running-requests-size-scorer, weight: 1}
"""


def test_the_profile_that_chooses_the_server_varies_whatever_its_name() -> None:
    found = default_parameters(load_text(DISAGGREGATED, "c"))
    assert [each.place.path for each in found] == [
        "schedulingProfiles[1].plugins[1].weight",
        "schedulingProfiles[1].plugins[2].weight",
    ]


@pytest.mark.parametrize(
    ("handler", "primary"),
    [
        ("{type: header-profile-handler, parameters: {defaultProfile: answers}}", "answers"),
        ("{type: header-profile-handler, parameters: {defaultProfile: default}}", "default"),
    ],
)
def test_the_handler_says_which_profile_is_primary(handler: str, primary: str) -> None:
    text = DISAGGREGATED.replace("{type: disagg", "type: disagg")
    begin, end = text.index("- type: disagg"), text.index("schedulingProfiles")
    graph = make_builder().build(load_text(text[:begin] + f"- {handler}\n" + text[end:], "c"))
    try:
        assert primary_profile(graph.scheduler) == primary
    finally:
        close_all(graph.plugins.values())


def test_without_weights_and_thresholds_there_is_nothing_to_vary_by_default() -> None:
    lonely = CONFIG.partition("- {type: load-aware")[0] + (
        "schedulingProfiles:\n- name: default\n  plugins:\n  - {pluginRef: queue-scorer}\n"
    )
    with pytest.raises(TuningError, match="say what to vary with --vary"):
        default_parameters(load_text(lonely, "c"))


def test_all_combinations_are_candidates_if_they_fit() -> None:
    config = load_text(CONFIG, "c")
    texts = ["plugins[1].parameters.threshold=64,2", "schedulingProfiles[0].plugins[1].weight=2,3"]
    parameters = [parse_variation(each, config) for each in texts]
    found = make_candidates(config, "base", parameters, 10, 1)
    assert [tuple(each.values) for each in found] == [(64, 2), (64, 3), (2, 2), (2, 3)]
    assert found[0].contender.text == CONFIG


def test_draws_reach_all_parts_of_each_domain() -> None:
    config = load_text(CONFIG, "c")
    texts = [f"schedulingProfiles[0].plugins[{at}].weight=0..10" for at in (1, 2)]
    parameters = [parse_variation(each, config) for each in texts]
    drawn = make_candidates(config, "base", parameters, 11, 1)[1:]
    for column in zip(*(each.values for each in drawn), strict=True):
        assert len({int(float(value or 0)) for value in column}) == 10
    assert drawn != make_candidates(config, "base", parameters, 11, 2)[1:]
