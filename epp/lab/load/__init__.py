"""The load generator behind ``epp load``: OpenAI requests to a gateway, timed token by token."""

from epp.lab.load.distribution import Distribution
from epp.lab.load.errors import LoadError, PlanError
from epp.lab.load.plan import Api, Arrivals, LoadPlan
from epp.lab.load.progress import run_with_progress
from epp.lab.load.record import ErrorKind, Record
from epp.lab.load.report import ErrorSummary, Report
from epp.lab.load.run import Progress, run

__all__ = [
    "Api",
    "Arrivals",
    "Distribution",
    "ErrorKind",
    "ErrorSummary",
    "LoadError",
    "LoadPlan",
    "PlanError",
    "Progress",
    "Record",
    "Report",
    "run",
    "run_with_progress",
]
