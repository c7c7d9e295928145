"""The load generator of ``epp load``: sends OpenAI requests to a gateway and times each token."""

from epp.lab.load.errors import LoadError, PlanError
from epp.lab.load.output import renderer, to_html
from epp.lab.load.plan import Api, ArrivalSpacing, LoadPlan
from epp.lab.load.progress import run_with_progress
from epp.lab.load.report import Report
from epp.lab.load.request_headers import label_headers
from epp.lab.load.run import Progress, run
from epp.lab.load.search import SearchGoal, SearchResult, SearchStep, search, step_runner
from epp.lab.load.search_output import answer, search_json, step_line

__all__ = [
    "Api",
    "ArrivalSpacing",
    "LoadError",
    "LoadPlan",
    "PlanError",
    "Progress",
    "Report",
    "SearchGoal",
    "SearchResult",
    "SearchStep",
    "answer",
    "label_headers",
    "renderer",
    "run",
    "run_with_progress",
    "search",
    "search_json",
    "step_line",
    "step_runner",
    "to_html",
]
