"""Deferred scrapes do not change results: runs equal those with every scrape made when due."""

from pathlib import Path
from typing import Any

import pytest
from lab.simulation.simulated import ENGINE, scenario

from epp.building import InstalledPlugins
from epp.config import load_file
from epp.lab.envoy import Mode
from epp.lab.scenarios import LabScenario
from epp.lab.simulation import Simulation, SimulationResult
from epp.lab.simulation.engine_scrapes import EngineScrapeLoop
from epp.lab.simulation.picker import PickerRouter

CONFIG = Path(__file__).parents[3] / "deploy" / "config"
SHARED = {
    "generator": "shared-prefix",
    "groups": 12,
    "system_tokens": 1000,
    "question_tokens": 100,
    "output_tokens": 80,
    "arrivals": {"rate": 8},
    "limit": 80,
}
SELDOM = {"generator": "random", "output_tokens": 4, "arrivals": {"rate": 0.4}, "limit": 12}
"""Servers rest between requests, so that scrapes become rare."""


@pytest.fixture(scope="module")
def installed() -> InstalledPlugins:
    return InstalledPlugins.load()


def _run(
    given: LabScenario, config: str, installed: InstalledPlugins, *, mode: Mode, defers: bool
) -> SimulationResult:
    return Simulation(
        engines=given.engines,
        traffic=given.workload(1),
        make_router=lambda servers, loop: PickerRouter(
            load_file(CONFIG / config),
            servers,
            loop,
            installed=installed,
            seed=1,
            mode=mode,
            defers_scrapes=defers,
        ),
        faults=given.faults,
        seed=1,
        timeout_seconds=given.timeout_seconds,
    ).run()


@pytest.mark.parametrize(
    ("config", "traffic", "more", "mode"),
    [
        pytest.param("default.yaml", SHARED, {}, Mode.LEAN, id="shared prefixes"),
        pytest.param("default.yaml", SELDOM, {}, Mode.LEAN, id="resting servers"),
        pytest.param("default.yaml", SHARED, {}, Mode.FULL_DUPLEX, id="whole responses are seen"),
        pytest.param("lora.yaml", SHARED, {}, Mode.LEAN, id="adapters are scored"),
        pytest.param("load-reports.yaml", SHARED, {}, Mode.LEAN, id="load reports"),
        pytest.param(
            "predicted-time.yaml", SHARED, {}, Mode.FULL_DUPLEX, id="a plugin observes scrapes"
        ),
        pytest.param(
            "default.yaml",
            SHARED | {"arrivals": {"rate": 40}},
            {"engine": ENGINE | {"max_num_seqs": 4}},
            Mode.LEAN,
            id="servers with queues",
        ),
        *(
            pytest.param(
                "default.yaml",
                SHARED,
                {"faults": [{"kind": kind, "at": "2s", "for": "2s", "worker": 1}], "timeout": "5s"},
                Mode.LEAN,
                id=kind,
            )
            for kind in ("crash", "hang", "straggler", "metrics-stale", "metrics-missing", "error")
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_run_is_the_same_with_and_without_deferred_scrapes(
    config: str,
    traffic: dict[str, Any],
    more: dict[str, Any],
    mode: Mode,
    installed: InstalledPlugins,
) -> None:
    given = scenario(traffic, **more)
    deferred, stepwise = (
        _run(given, config, installed, mode=mode, defers=defers) for defers in (True, False)
    )
    assert deferred.records == stepwise.records
    assert deferred.virtual_seconds == stepwise.virtual_seconds


def _scrapes(
    config: str, installed: InstalledPlugins, monkeypatch: pytest.MonkeyPatch, *, defers: bool
) -> int:
    """Return how often a run reads its engines."""
    made: list[str] = []
    for name in ("run", "_begin"):
        original = getattr(EngineScrapeLoop, name)

        def count(loop: EngineScrapeLoop, original: Any = original) -> None:
            made.append(loop.scrape.endpoint.name)
            original(loop)

        monkeypatch.setattr(EngineScrapeLoop, name, count)
    _run(scenario(SHARED), config, installed, mode=Mode.LEAN, defers=defers)
    monkeypatch.undo()
    return len(made)


def test_scrapes_that_nothing_sees_are_left_out(
    installed: InstalledPlugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepwise = _scrapes("default.yaml", installed, monkeypatch, defers=False)
    assert _scrapes("default.yaml", installed, monkeypatch, defers=True) < 0.8 * stepwise


def test_with_flow_control_every_scrape_is_made_when_it_is_due(
    installed: InstalledPlugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepwise = _scrapes("flow-control.yaml", installed, monkeypatch, defers=False)
    assert _scrapes("flow-control.yaml", installed, monkeypatch, defers=True) == stepwise
