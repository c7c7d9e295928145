"""Render the results of a run: as a page, or in the format that a file name asks for."""

import json
from collections.abc import Callable
from pathlib import Path

from epp.lab.load.errors import PlanError
from epp.lab.load.report import Report
from epp.lab.results.page import run_page
from epp.lab.results.record_files import to_csv, to_json_lines


def renderer(path: Path) -> Callable[[Report], str]:
    """Return the function that renders a report in the format of this file name.

    Raises:
        PlanError: The name ends neither in ``.json``, ``.csv`` nor ``.jsonl``.
    """
    renderers: dict[str, Callable[[Report], str]] = {
        ".json": to_json,
        ".csv": lambda report: to_csv(report.records, report.plan.slo),
        ".jsonl": lambda report: to_json_lines(report.records, report.plan.slo),
    }
    if path.suffix not in renderers:
        raise PlanError(
            f"{path}: must end in .json (the report), or in .csv or .jsonl (a line per request)"
        )
    return renderers[path.suffix]


def to_json(report: Report) -> str:
    """Render the report, without the records of the requests."""
    return json.dumps(report.to_dict(), indent=2) + "\n"


def to_html(report: Report) -> str:
    """Render the report as a page with plots, in one file."""
    plan = report.plan
    settings = plan.to_dict()
    del settings["slo"]  # the headline has it
    found = report.generator.bottleneck
    return run_page(
        report,
        report.records,
        title=f"Load on {plan.url}, model {plan.model}",
        slo=plan.slo,
        remarks=[f"{found}: the figures show the limits of the generator."] if found else [],
        settings={name: value for name, value in settings.items() if value not in (None, [])},
    )
