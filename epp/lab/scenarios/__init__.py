"""Scenarios: descriptions of a fleet, its traffic and its faults, in files."""

from epp.lab.scenarios.errors import ScenarioError
from epp.lab.scenarios.loader import load_scenario, scenario_of
from epp.lab.scenarios.scenario import LabScenario

__all__ = ["LabScenario", "ScenarioError", "load_scenario", "scenario_of"]
