"""Records of the requests of a load run or a simulation, and their summaries."""

from epp.lab.results.accounts import EppChoice, OracleChoice, ServerAccount
from epp.lab.results.comparison import (
    METRICS,
    Cell,
    Comparison,
    ComparisonError,
    Metric,
    compare,
)
from epp.lab.results.comparison_table import comparison_table
from epp.lab.results.distribution import Distribution
from epp.lab.results.groups import Balance, Goodput, GroupSummary, Spread
from epp.lab.results.joins import JoinError, epp_choices, joined_records, server_accounts
from epp.lab.results.predictions import Predictions
from epp.lab.results.ratios import Ratio, RatioVerdict
from epp.lab.results.record import ErrorKind, Record
from epp.lab.results.record_files import to_csv, to_json_lines
from epp.lab.results.slo import Slo
from epp.lab.results.summary import ErrorSummary, Summary, summarise
from epp.lab.results.sweep import Knee, Sweep, sweep_table
from epp.lab.results.table import summary_table

__all__ = [
    "METRICS",
    "Balance",
    "Cell",
    "Comparison",
    "ComparisonError",
    "Distribution",
    "EppChoice",
    "ErrorKind",
    "ErrorSummary",
    "Goodput",
    "GroupSummary",
    "JoinError",
    "Knee",
    "Metric",
    "OracleChoice",
    "Predictions",
    "Ratio",
    "RatioVerdict",
    "Record",
    "ServerAccount",
    "Slo",
    "Spread",
    "Summary",
    "Sweep",
    "compare",
    "comparison_table",
    "epp_choices",
    "joined_records",
    "server_accounts",
    "summarise",
    "summary_table",
    "sweep_table",
    "to_csv",
    "to_json_lines",
]
