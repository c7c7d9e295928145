"""The search finds a planted improvement, and claims nothing without a difference."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.simulation.simulated import ENGINE, scenario

from epp.config import LoadedConfig, default_config, load_file, load_text
from epp.lab.results import RatioVerdict
from epp.lab.scenarios import LabScenario, load_scenario
from epp.lab.simulation import Contender, RunSettings, run
from epp.lab.tuning import (
    GOODPUT,
    P90_TTFT,
    Search,
    TuningError,
    TuningObjective,
    TuningResult,
    count_combinations,
    make_candidates,
    may_be_short,
    parse_variation,
    plan_rungs,
)
from tools import REPOSITORY

FAVOURITE = """
from epp.scheduling import Scorer
import msgspec


class Params(msgspec.Struct, forbid_unknown_fields=True):
    worker: int = 0


class Favourite(Scorer):
    type = "favourite"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._name = f"default/worker-{params.worker:03d}"

    def score(self, request, endpoints, state):
        return [float(each.name == self._name) for each in endpoints]
"""
PLANTED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: file:favourite.py:Favourite
  name: favourite  # the best one is that of the fast worker
  parameters: {worker: 0}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: favourite
"""
WEIGHTS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: prefix-cache-scorer, weight: 0}
"""
PREFIX_WEIGHT = "schedulingProfiles[0].plugins[pluginRef=prefix-cache-scorer].weight"


def search(
    config: LoadedConfig,
    variations: Sequence[str],
    given: LabScenario,
    objective: TuningObjective = P90_TTFT,
    *,
    budget: float = 12,
    seeds: int = 3,
) -> TuningResult:
    parameters = [parse_variation(each, config) for each in variations]
    combinations = count_combinations(parameters)
    rungs = plan_rungs(
        budget,
        seeds,
        candidates=None if combinations is None else combinations + 1,
        may_be_short=may_be_short(given),
    )
    candidates = make_candidates(config, "base", parameters, rungs[0].candidates, 1)
    return Search(scenario=given, objective=objective, seeds=seeds, progress=lambda *_: None).find(
        candidates, rungs
    )


@pytest.fixture
def planted(tmp_path: Path) -> LoadedConfig:
    (tmp_path / "favourite.py").write_text(FAVOURITE)
    path = tmp_path / "picker.yaml"
    path.write_text(PLANTED)
    return load_file(path)


def unequal(**more: Any) -> LabScenario:
    """Return a scenario of four workers of which the third is much faster than the others."""
    return scenario(
        fleet={
            "workers": 4,
            "engine": ENGINE | {"prefill_tokens_per_second": 2000},
            "overrides": {2: {"prefill_tokens_per_second": 40_000}},
        },
        **more,
    )


@pytest.mark.parametrize("objective", [GOODPUT, P90_TTFT], ids=lambda each: each.name)
def test_the_planted_optimum_is_found(planted: LoadedConfig, objective: TuningObjective) -> None:
    given = unequal(slo={"ttft": "1s"})
    found = search(planted, ["plugins[name=favourite].parameters.worker=0..3"], given, objective)
    winner = found.winner
    assert winner is not None
    assert list(winner.candidate.values) == [2]
    assert winner.checked is not None
    assert not set(found.search_seeds) & set(found.fresh_seeds)
    assert winner.candidate.contender.text == PLANTED.replace("{worker: 0}", "{worker: 2}")


def test_a_gain_from_nothing_has_no_ratio_but_is_one(planted: LoadedConfig) -> None:
    given = unequal(slo={"ttft": "100ms"})
    found = search(planted, ["plugins[0].parameters.worker=0,2"], given, GOODPUT, budget=6)
    assert found.winner is not None
    assert found.winner.checked is None
    assert (found.winner.median or 0) > 1


def test_a_weight_that_was_missing_is_found() -> None:
    shared = {
        "generator": "shared-prefix",
        "groups": 12,
        "system_tokens": 2000,
        "question_tokens": 32,
        "output_tokens": 8,
        "arrivals": {"rate": 20},
        "limit": 80,
    }
    found = search(load_text(WEIGHTS, "w"), [f"{PREFIX_WEIGHT}=0..4"], scenario(shared), budget=18)
    assert found.winner is not None
    weight = found.winner.candidate.values[0]
    assert isinstance(weight, float)
    assert weight > 0
    assert found.winner.checked is not None
    assert found.winner.checked.mean < 0.8


def test_without_a_difference_none_is_claimed() -> None:
    found = search(load_text(WEIGHTS, "w"), [f"{PREFIX_WEIGHT}=0,1,3"], scenario())
    assert found.winner is None
    checked = found.finalists[0].checked
    assert checked is not None
    assert (checked.low or 2) <= 1 <= (checked.high or 0)
    assert list(found.records) == ["base", found.finalists[0].candidate.contender.name]


def test_a_single_configuration_cannot_be_searched() -> None:
    config = load_text(WEIGHTS, "w")
    parameters = [parse_variation(f"{PREFIX_WEIGHT}=0,1", config)]
    alone = make_candidates(config, "base", parameters, 2, 1)[:1]
    run = Search(scenario=scenario(), objective=P90_TTFT, progress=lambda *_: None)
    with pytest.raises(TuningError, match="no value differs"):
        run.find(alone, plan_rungs(10, 5))


@pytest.mark.timeout(60)
def test_the_optimum_of_the_scenario_made_for_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("structlog.PrintLogger.info", lambda *_, **__: None)
    planted = load_scenario(REPOSITORY / "deploy" / "lab" / "planted-optimum.yaml")
    settings = RunSettings(scenario=replace(planted.changed(requests=400), warm_up_seconds=4))
    weight = "{pluginRef: kv-cache-utilization-scorer, weight: 2}"
    text = default_config().text
    assert weight in text
    off = text.replace(weight, weight.replace("2", "0"))
    times = []
    for each in (text, off):
        done = run(settings, Contender.of_text("c", each), 1)
        assert done.summary.ttft_ms is not None
        times.append(done.summary.ttft_ms.p90)
    assert times[1] < 0.7 * times[0]


def test_a_gain_that_was_chance_is_not_claimed() -> None:
    """Other numbers of decisions draw other ties: one of many looks better in the search."""
    variations = ["schedulingProfiles[0].plugins[0].weight=0..0.000001", f"{PREFIX_WEIGHT}=1..3"]
    found = search(load_text(WEIGHTS, "w"), variations, scenario(), budget=15)
    assert found.winner is None
    assert all(each.verdict is not RatioVerdict.BETTER for each in found.finalists)


def test_the_same_search_finds_the_same(planted: LoadedConfig) -> None:
    one, other = (
        search(planted, ["plugins[0].parameters.worker=0..3"], unequal(), seeds=2, budget=6)
        for _ in range(2)
    )
    assert one == other


def test_a_value_that_a_plugin_refuses_is_an_error(planted: LoadedConfig) -> None:
    with pytest.raises(TuningError, match=r"parameters\.worker = fast is refused"):
        search(planted, ["plugins[0].parameters.worker=0,fast"], unequal())


def test_an_unknown_parameter_is_an_error_with_the_known_ones() -> None:
    text = textwrap.dedent(WEIGHTS)
    with pytest.raises(TuningError, match="treshold"):
        search(load_text(text, "w"), ["plugins[0].parameters.treshold=1,2"], scenario())
