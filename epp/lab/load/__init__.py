"""The load generator of ``epp load``: sends OpenAI requests to a gateway and times each token."""

from epp.lab.load.errors import LoadError, PlanError
from epp.lab.load.output import renderer
from epp.lab.load.plan import Api, Arrivals, LoadPlan
from epp.lab.load.progress import run_with_progress
from epp.lab.load.report import ErrorSummary, Goodput, Report
from epp.lab.load.run import Progress, run
from epp.lab.load.table import report_table

__all__ = [
    "Api",
    "Arrivals",
    "ErrorSummary",
    "Goodput",
    "LoadError",
    "LoadPlan",
    "PlanError",
    "Progress",
    "Report",
    "renderer",
    "report_table",
    "run",
    "run_with_progress",
]
