"""The load generator of ``epp load``: sends OpenAI requests to a gateway and times each token."""

from epp.lab.load.errors import LoadError, PlanError
from epp.lab.load.output import renderer, to_html
from epp.lab.load.plan import Api, Arrivals, LoadPlan
from epp.lab.load.progress import run_with_progress
from epp.lab.load.report import Report
from epp.lab.load.run import Progress, run

__all__ = [
    "Api",
    "Arrivals",
    "LoadError",
    "LoadPlan",
    "PlanError",
    "Progress",
    "Report",
    "renderer",
    "run",
    "run_with_progress",
    "to_html",
]
