"""Render the records of requests: a line of CSV or JSON for each."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from epp.lab.results.accounts import EppChoice, ServerAccount
from epp.lab.results.record import Record
from epp.lab.results.slo import Slo

_MS = 1000.0
_NO_SERVER = ServerAccount()
_NO_CHOICE = EppChoice()

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
    "request_id": lambda each: each.request_id,
    "tenant": lambda each: each.tenant,
    "adapter": lambda each: each.adapter,
    "session": lambda each: each.session,
    "objective": lambda each: each.objective,
    "worker": lambda each: each.server and each.server.worker,
    "rank": lambda each: each.server and each.server.rank,
    "server_queue_ms": lambda each: _ms((each.server or _NO_SERVER).queue_seconds),
    "server_prefill_ms": lambda each: _ms((each.server or _NO_SERVER).prefill_seconds),
    "server_decode_ms": lambda each: _ms((each.server or _NO_SERVER).decode_seconds),
    "server_cached_tokens": lambda each: each.server and each.server.cached_tokens,
    "preemptions": lambda each: each.server and each.server.preemptions,
    "predicted_cached_tokens": lambda each: each.epp and each.epp.predicted_cached_tokens,
    "score": lambda each: each.epp and each.epp.score,
    "decision_ms": lambda each: _ms((each.epp or _NO_CHOICE).decision_seconds),
    "epp_queue_ms": lambda each: _ms((each.epp or _NO_CHOICE).queue_seconds),
    "oracle_ttft_ms": lambda each: _ms(each.oracle.ttft_seconds if each.oracle else None),
    "regret_ms": lambda each: _ms(each.regret_seconds),
}
"""The columns: a function of the record for each; None is an empty field, in JSON null."""


def to_csv(records: Iterable[Record], slo: Slo | None = None) -> str:
    """Render a line of CSV for each record, in the order of the indexes, after a header line."""
    text = io.StringIO()
    lines = csv.DictWriter(text, list(_columns(slo)), lineterminator="\n")
    lines.writeheader()
    lines.writerows(_rows(records, slo))
    return text.getvalue()


def to_json_lines(records: Iterable[Record], slo: Slo | None = None) -> str:
    """Render an object of JSON for each record, in the order of the indexes."""
    return "".join(json.dumps(row) + "\n" for row in _rows(records, slo))


def _columns(slo: Slo | None) -> dict[str, Callable[[Record], Any]]:
    if slo is None or not slo.is_set:
        return COLUMNS
    return COLUMNS | {"meets_slo": lambda each: int(slo.is_met(each))}


def _rows(records: Iterable[Record], slo: Slo | None) -> Iterator[dict[str, Any]]:
    columns = _columns(slo)
    for record in sorted(records, key=lambda each: each.index):
        yield {name: value(record) for name, value in columns.items()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MS, 3)
