"""The files that ``epp fleet`` reads: faults, and scenarios."""

from pathlib import Path

import yaml

from epp.cli.running import fail
from epp.lab.fleet import ConfigError, FaultPlan
from epp.lab.scenarios import Scenario, ScenarioError, load_scenario


def fault_plan(path: Path, endpoints: int) -> FaultPlan:
    """Read --faults; exits with an error if the file is invalid."""
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        fail(f"--faults {path}: {error.strerror}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        fail(f"--faults {path} is not YAML: {error}")
    if isinstance(document, dict):
        document = document.get("faults")
    if document is None:
        fail(f"--faults {path}: must be a list of faults, or have the section faults")
    try:
        plan = FaultPlan.from_list(document)
        plan.schedule(workers=endpoints)
    except ConfigError as error:
        fail(f"--faults {path}: {error}")
    return plan


def scenario(path: Path, endpoints: int | None) -> Scenario:
    """Read --scenario; exits with an error if the file is invalid.

    Args:
        path: The file.
        endpoints: Number of servers, instead of its own.
    """
    try:
        read = load_scenario(path).changed(workers=endpoints)
        read.faults.schedule(workers=len(read.engines))
    except (ScenarioError, ConfigError) as error:
        fail(f"--scenario {path}: {error}")
    return read
