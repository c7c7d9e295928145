"""Plain tables of requests: CSV with a head, or JSON lines with the same names.

Columns: `prompt_tokens` and `output_tokens`; optional `arrival` (seconds, ascending), `prefix`
(name of a text that prompts share) with `prefix_tokens`, `tenant`, `objective`, `adapter`,
`session`, `ttft_slo_ms` and `tpot_slo_ms`.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.request import Segment, TrafficRequest
from epp.lab.traffic.traces.rows import TraceLineError, csv_rows, json_lines, whole_number
from epp.lab.traffic.workload import Conversation, content_of


class TableRow(NamedTuple):
    """One request; None and "" stand for what is not given."""

    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int
    arrival: float | None
    ttft_slo_ms: float | None
    tpot_slo_ms: float | None
    prefix: str
    tenant: str
    objective: str
    adapter: str
    session: str


COLUMNS = TableRow._fields
"""All columns."""


def read_rows(path: Path) -> Iterator[TableRow]:
    """Yield the rows of a file; `.csv` is CSV, others are JSON lines.

    Raises:
        TrafficError: The file cannot be read, or a line is invalid.
    """
    rows: Iterable[tuple[int, dict[str, Any]]] = (
        csv_rows(path) if path.suffix == ".csv" else json_lines(path, dict[str, Any])
    )
    first: tuple[int, TableRow] | None = None
    latest = -math.inf
    for line, row in rows:
        parsed = _parse(path, line, row)
        first = first or (line, parsed)
        if (parsed.arrival is None) != (first[1].arrival is None):
            raise TraceLineError(path, line, "arrival must be given in all lines, or in none")
        if parsed.arrival is not None and parsed.arrival < latest:
            raise TraceLineError(path, line, "arrival is before the line above; sort the file")
        latest = latest if parsed.arrival is None else parsed.arrival
        yield parsed


def _parse(path: Path, line: int, row: dict[str, Any]) -> TableRow:
    if unknown := [name for name in row if name not in COLUMNS]:
        raise TrafficError(
            f"{path}: line {line}: unknown column {unknown[0]!r}; there are {', '.join(COLUMNS)}"
        )
    prompt_tokens = whole_number(path, line, row, "prompt_tokens")
    prefix = str(row.get("prefix") or "")
    prefix_tokens = whole_number(path, line, row, "prefix_tokens") if prefix else 0
    if prefix_tokens > prompt_tokens:
        problem = f"prefix_tokens {prefix_tokens} exceed prompt_tokens {prompt_tokens}"
        raise TraceLineError(path, line, problem)
    return TableRow(
        prompt_tokens,
        whole_number(path, line, row, "output_tokens"),
        prefix_tokens,
        _number(path, line, row, "arrival"),
        _number(path, line, row, "ttft_slo_ms"),
        _number(path, line, row, "tpot_slo_ms"),
        prefix,
        *(str(row.get(name) or "") for name in ("tenant", "objective", "adapter", "session")),
    )


def _number(path: Path, line: int, row: dict[str, Any], column: str) -> float | None:
    value = row.get(column)
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise TraceLineError(path, line, f"{column} is {value!r}, not a number of 0 or more")
    return number


def conversations(rows: Iterable[TableRow], *, name: str) -> Iterator[Conversation]:
    """Yield a conversation of one request for each row; the first arrives at 0."""
    start: float | None = None
    for number, row in enumerate(rows):
        if start is None:
            start = row.arrival
        segments = []
        if row.prefix:
            segments.append(Segment(content_of(name, "prefix", row.prefix), row.prefix_tokens))
        if own := row.prompt_tokens - row.prefix_tokens:
            segments.append(Segment(content_of(name, "row", number), own))
        yield [
            TrafficRequest(
                index=0,
                arrives_at=None if row.arrival is None else row.arrival - (start or 0.0),
                segments=tuple(segments),
                output_tokens=row.output_tokens,
                adapter=row.adapter,
                tenant=row.tenant,
                objective=row.objective,
                session=row.session,
                ttft_slo_seconds=_seconds(row.ttft_slo_ms),
                tpot_slo_seconds=_seconds(row.tpot_slo_ms),
            )
        ]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
