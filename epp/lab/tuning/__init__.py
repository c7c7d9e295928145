"""Better configurations, found and checked in simulations.

A parameter (`parameters`) varies one place of the configuration (`places`) over a set of values
(`domains`); `default_search` chooses parameters of the `primary_profile`. `candidates` are
configurations with other values, `rungs` plans successive halving, `search` runs it for an
objective and checks the result on fresh seeds. `recording` makes a scenario of recorded decisions.
"""

from epp.lab.tuning.candidates import ConfigCandidate, count_combinations, make_candidates
from epp.lab.tuning.default_search import default_parameters
from epp.lab.tuning.domains import Value
from epp.lab.tuning.errors import TuningError
from epp.lab.tuning.objectives import GOODPUT, OBJECTIVES, P90_TTFT, TuningObjective
from epp.lab.tuning.parameters import Parameter, check_distinct, parse_variation
from epp.lab.tuning.primary_profile import primary_profile
from epp.lab.tuning.recording import RECORDED, Recording
from epp.lab.tuning.rungs import Rung, plan_rungs
from epp.lab.tuning.search import Finalist, Search, TuningResult
from epp.lab.tuning.shorter import has_same_requests, may_be_short

__all__ = [
    "GOODPUT",
    "OBJECTIVES",
    "P90_TTFT",
    "RECORDED",
    "ConfigCandidate",
    "Finalist",
    "Parameter",
    "Recording",
    "Rung",
    "Search",
    "TuningError",
    "TuningObjective",
    "TuningResult",
    "Value",
    "check_distinct",
    "count_combinations",
    "default_parameters",
    "has_same_requests",
    "make_candidates",
    "may_be_short",
    "parse_variation",
    "plan_rungs",
    "primary_profile",
]
