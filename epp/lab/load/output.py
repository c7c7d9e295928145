"""Render the results of a run: the report as JSON, or one line of CSV per request."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epp.lab.load.errors import PlanError
from epp.lab.load.report import Report
from epp.lab.results.record import Record

_MS = 1000.0

COLUMNS: dict[str, Callable[[Record], Any]] = {
    "index": lambda each: each.index,
    "started_at_seconds": lambda each: round(each.started_at, 6),
    "schedule_delay_ms": lambda each: _ms(each.started_at - each.scheduled_at),
    "status": lambda each: each.status or None,
    "served_by": lambda each: each.served_by,
    "ttft_ms": lambda each: _ms(each.ttft_seconds),
    "tpot_ms": lambda each: _ms(each.tpot_seconds),
    "latency_ms": lambda each: _ms(each.latency_seconds),
    "prompt_tokens": lambda each: each.prompt_tokens,
    "cached_tokens": lambda each: each.cached_tokens,
    "output_tokens": lambda each: each.output_tokens,
    "left_early": lambda each: int(each.left_early),
    "error": lambda each: each.error_label,
    "message": lambda each: each.message,
}
"""The CSV columns: a function of the record for each; None becomes an empty field."""


def renderer(path: Path) -> Callable[[Report], str]:
    """Return the function that renders a report in the format of this file name.

    Raises:
        PlanError: The name ends neither in ``.json`` nor in ``.csv``.
    """
    renderers = {".json": to_json, ".csv": to_csv}
    if path.suffix not in renderers:
        raise PlanError(f"{path}: must end in .json (the report) or .csv (a line per request)")
    return renderers[path.suffix]


def to_json(report: Report) -> str:
    """Render the report, without the records of the requests."""
    return json.dumps(report.to_dict(), indent=2) + "\n"


def to_csv(report: Report) -> str:
    """Render one line for each finished request, in the order of the indexes."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    columns = dict(COLUMNS)
    if report.plan.slo.is_set:
        columns["meets_slo"] = lambda each: int(report.plan.slo.is_met(each))
    lines.writerow(columns)
    for record in sorted(report.records, key=lambda each: each.index):
        lines.writerow(value(record) for value in columns.values())
    return text.getvalue()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MS, 3)
