"""Small scenarios for tests of the simulation."""

from collections.abc import Mapping
from typing import Any

from epp.lab.scenarios import LabScenario, scenario_of
from epp.lab.simulation import Contender, RunSettings, SimulationResult, simulate

ENGINE = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
    "num_blocks": 2000,
    "prefill_tokens_per_second": 8000,
}


def scenario(
    traffic: Mapping[str, Any] | None = None,
    *,
    workers: int = 4,
    engine: Mapping[str, Any] = ENGINE,
    **more: Any,
) -> LabScenario:
    """Return a scenario; by default 40 requests without common prefixes."""
    default = {"generator": "random", "output_tokens": 20, "arrivals": {"rate": 20}, "limit": 40}
    return scenario_of(
        {
            "description": "a test",
            "fleet": {"workers": workers, "engine": dict(engine)},
            "traffic": dict(traffic or default),
            **more,
        },
        name="test",
    )


def outcome(
    given: LabScenario, policy: str = "round-robin", *, seed: int = 1, **more: Any
) -> SimulationResult:
    """Return what happens in a scenario with a built-in policy."""
    return simulate(RunSettings(scenario=given, **more), Contender.of_policy(policy), seed)
