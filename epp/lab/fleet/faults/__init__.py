"""Faults of the fake servers, on a schedule that depends on nothing but a plan and a seed.

`FaultPlan.from_list` reads the plan, `FaultPlan.schedule` binds it to a fleet, and
`FaultSchedule.state_at` returns the faults of a worker at a time.
"""

from epp.lab.fleet.faults.kinds import EFFECTS
from epp.lab.fleet.faults.plan import FaultPlan, FaultSchedule, PlannedFault
from epp.lab.fleet.faults.state import ServerFaults

FAULT_KINDS = tuple(EFFECTS)
"""Names of the kinds of faults."""

__all__ = ["FAULT_KINDS", "FaultPlan", "FaultSchedule", "PlannedFault", "ServerFaults"]
