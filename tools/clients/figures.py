"""The numbers that both clients report, and the same numbers from the fleet's record."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.lab.results import Distribution


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, and its place in the documents."""

    name: str
    aiperf: tuple[str, str]
    """Metric and statistic in aiperf's JSON export."""
    own: tuple[str, ...]
    """Path in the JSON summary of `epp load`."""
    unit: str = "ms"


FIGURES = (
    Figure("requests", ("request_count", "avg"), ("succeeded",), ""),
    Figure("output tokens", ("total_output_tokens", "avg"), ("output_tokens",), ""),
    *(
        Figure(f"{name} {part}", (metric, part), (key, part))
        for name, metric, key in (
            ("TTFT", "time_to_first_token", "ttft_ms"),
            # aiperf's inter-token latency is one value for each response, as our TPOT is.
            ("TPOT", "inter_token_latency", "tpot_ms"),
            ("inter-token", "inter_chunk_latency", "inter_token_ms"),
            ("end-to-end", "request_latency", "latency_ms"),
        )
        for part in ("p50", "p90")
    ),
    Figure("throughput", ("request_throughput", "avg"), ("requests_per_second",), "requests/s"),
    Figure(
        "output throughput",
        ("output_token_throughput", "avg"),
        ("output_tokens_per_second",),
        "tokens/s",
    ),
)
"""The compared figures, in the order of the table."""


class DocumentError(ValueError):
    """A document lacks a figure; the message names both."""


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON document of a file.

    Raises:
        DocumentError: It does not exist, or is not JSON.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path} is not there, or no JSON: {error}") from None
    return document


def aiperf_figures(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of aiperf's JSON export by name.

    Raises:
        DocumentError: It lacks one: another version of aiperf wrote it.
    """
    return {each.name: _at(document, each.aiperf, "aiperf's export") for each in FIGURES}


def own_figures(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a summary of `epp load` by name.

    Raises:
        DocumentError: It lacks one: the run had no streamed response.
    """
    return {each.name: _at(document, each.own, "the summary of epp load") for each in FIGURES}


def fleet_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures that the fleet's record of one run contains.

    Args:
        rows: Lines of `epp fleet --record`, of completed requests.
    """
    began = [row["arrived_at"] for row in rows]
    firsts = [row["first_token_at"] for row in rows]
    ends = [row["finished_at"] for row in rows]
    outputs = [row["output_tokens"] for row in rows]
    elapsed = max(ends) - min(began)
    found = {
        "requests": float(len(rows)),
        "output tokens": float(sum(outputs)),
        "throughput": len(rows) / elapsed,
        "output throughput": sum(outputs) / elapsed,
    }
    durations = {
        "TTFT": [first - start for first, start in zip(firsts, began, strict=True)],
        "TPOT": [
            (end - first) / (count - 1)
            for end, first, count in zip(ends, firsts, outputs, strict=True)
            if count > 1
        ],
        "end-to-end": [end - start for end, start in zip(ends, began, strict=True)],
    }
    for name, values in durations.items():
        summary = Distribution.of_seconds(values)
        if summary is not None:
            found |= {f"{name} p50": summary.p50, f"{name} p90": summary.p90}
    return found


def write_trace(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write recorded requests as a table that `epp load --trace` sends at the same times.

    Args:
        rows: Lines of `epp fleet --record`.
        path: File of the table, whose name ends in ``.csv``.
    """
    in_order = sorted(rows, key=lambda row: row["arrived_at"])
    began = in_order[0]["arrived_at"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("arrival", "prompt_tokens", "output_tokens"))
        for row in in_order:
            arrival = f"{row['arrived_at'] - began:.6f}"
            writer.writerow((arrival, row["prompt_tokens"], row["output_tokens"]))


def _at(document: Mapping[str, Any], path: Sequence[str], where: str) -> float:
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, int | float):
        raise DocumentError(f"{where} has no number at {'.'.join(path)}")
    return float(value)
