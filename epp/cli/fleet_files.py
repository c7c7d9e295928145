"""Reads the files of ``epp fleet``: faults and scenarios."""

from pathlib import Path

from epp.cli.running import fail
from epp.inputs import why_unreadable
from epp.lab.fleet import FaultPlan, FleetConfigError
from epp.lab.scenarios import LabScenario, ScenarioError, load_scenario
from epp.lab.yaml_text import parse_yaml


def fault_plan(path: Path, endpoints: int) -> FaultPlan:
    """Read --faults; exits with an error if the file is invalid."""
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--faults {path}: {why_unreadable(error)}")
    except ValueError as error:
        fail(f"--faults {path} is not YAML: {error}")
    if isinstance(document, dict):
        document = document.get("faults")
    if document is None:
        fail(f"--faults {path}: must be a list of faults, or have the section faults")
    try:
        plan = FaultPlan.from_list(document)
        plan.schedule(workers=endpoints)
    except FleetConfigError as error:
        fail(f"--faults {path}: {error}")
    return plan


def scenario(path: Path, endpoints: int | None) -> LabScenario:
    """Read --scenario; exits with an error if the file is invalid.

    Args:
        path: The file.
        endpoints: Number of servers; None for that of the scenario.
    """
    try:
        read = load_scenario(path).changed(workers=endpoints)
        read.faults.schedule(workers=len(read.engines))
    except (ScenarioError, FleetConfigError) as error:
        fail(f"--scenario {path}: {error}")
    return read
