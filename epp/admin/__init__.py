"""Pages for operators on the metrics port: explanations of decisions, and the live page."""

from epp.admin.decision_file import DecisionFile, DecisionFileCollector
from epp.admin.decision_record import DecisionLine, DecisionRecord, DecisionsPage
from epp.admin.explanations import PoolDecisions
from epp.admin.settings import ExplainSettings

__all__ = [
    "DecisionFile",
    "DecisionFileCollector",
    "DecisionLine",
    "DecisionRecord",
    "DecisionsPage",
    "ExplainSettings",
    "PoolDecisions",
]
