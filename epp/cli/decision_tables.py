"""Formats decisions as tables."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice

from rich.console import RenderableType
from rich.table import Table

from epp.admin import DecisionLine, DecisionRecord
from epp.admin.decision_record import EndpointInputs, ProfileRecord
from epp.cli.debug_pages import plain

MAX_ROWS = 40
"""Maximum endpoints in a table; ``--json`` has all."""


def explained(record: DecisionRecord) -> Iterable[RenderableType]:
    """Yield the explanation of one decision, the sentence first."""
    yield plain(f"{record.request_id}: {record.why}")
    yield plain("decided    " + "; ".join(_decision(record)))
    yield plain("outcome    " + "; ".join(_outcome(record)))
    if record.prefix is not None and record.prefix.total_blocks:
        yield plain(f"cache      {_cache(record)}")
    for note in record.notes:
        yield plain(f"note       {note}")
    for pick in record.shadow:
        where = f"would have chosen {pick.endpoint or 'no endpoint'}"
        agrees = ", too" if pick.agrees else ""
        yield plain(f"shadow     {pick.profile} {where}{agrees}")
    for profile in record.profiles:
        yield ""
        nothing = "no filter, scorer or picker was asked"
        yield plain(nothing if record.is_forced else profile_heading(profile))
        yield profile_table(profile, record)


def line_table(lines: Sequence[DecisionLine]) -> Table:
    """Return a table of decisions, one per row."""
    table = _table("time", "request", "model", "endpoint")
    for heading in ("score", "margin", "queued", "first byte", "duration", "status"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for each in lines:
        table.add_row(
            _time(each.decided_at),
            plain(each.request_id),
            plain(each.target_model or each.model),
            plain(each.endpoint) or "(none)",
            "forced" if each.is_forced else _number(each.score),
            _number(each.margin),
            _seconds(each.queued_seconds),
            _seconds(each.first_byte_seconds),
            _seconds(each.duration_seconds),
            "" if each.status is None else str(each.status),
            each.outcome or "in flight",
        )
    return table


def _decision(record: DecisionRecord) -> Iterable[str]:
    yield f"{_time(record.decided_at)} UTC, {_seconds(record.decision_seconds)} after its headers"
    renamed = record.target_model not in {"", record.model}
    if record.model:
        yield f"model {record.model}" + (f", sent as {record.target_model}" if renamed else "")
    if record.fairness_id:
        yield f"priority {record.priority}, flow {record.fairness_id}"
    else:  # the request ended before its body was parsed
        yield f"path {record.path}, not read"
    if record.queued_seconds is not None:
        reasons = f" ({', '.join(record.queue_reasons)})" if record.queue_reasons else ""
        yield f"{_seconds(record.queued_seconds)} in the queue{reasons}"
    for profile, endpoint in record.stages.items():
        yield f"{profile} at {endpoint}"
    if record.pool:
        yield f"pool {record.pool}"


def _outcome(record: DecisionRecord) -> Iterable[str]:
    if record.outcome is None:
        yield "in flight"
    else:
        yield f"{record.outcome} after {_seconds(record.duration_seconds)}"
    if record.status is not None:
        yield f"status {record.status}"
    if record.first_byte_seconds is not None:
        yield f"first byte after {_seconds(record.first_byte_seconds)}"
    if record.served_by:
        yield f"served by {record.served_by} ({record.served_address}), not by the chosen one"
    if record.prompt_tokens is not None:
        yield f"{record.prompt_tokens} prompt tokens, {record.completion_tokens} generated"


def _cache(record: DecisionRecord) -> str:
    prefix = record.prefix
    assert prefix is not None  # noqa: S101 - checked by the caller
    total = prefix.total_blocks * prefix.block_size
    predicted = f"{record.predicted_cached_tokens} of about {total} prompt tokens predicted"
    if record.cached_tokens is None:
        return f"{predicted} at the chosen endpoint"
    return f"{predicted} at the chosen endpoint, {record.cached_tokens} reported by the server"


def profile_heading(profile: ProfileRecord) -> str:
    """Return the picks of a profile in one line."""
    kind = "primary" if profile.is_primary else "shadow" if profile.is_shadow else "stage"
    picked = ", ".join(profile.picked) or "none"
    words = [f"profile {profile.name} ({kind}): {profile.picker or 'picker'} picked {picked}"]
    if profile.ties > 1:
        words.append(f"among {profile.ties} with the same total")
    if profile.filters:
        words.append("filters " + ", ".join(each.name for each in profile.filters))
    if profile.preference:
        words.append("totals are scaled to [0, 10), and flow control's preference is added")
    if profile.error:
        words.append(profile.error)
    return "; ".join(words)


def profile_table(
    profile: ProfileRecord, record: DecisionRecord, totals_before: Mapping[str, float] | None = None
) -> Table:
    """Return the endpoints of a profile: its picks, the others by total, the removed ones.

    Args:
        profile: The profile.
        record: The decision.
        totals_before: Totals by endpoint to compare with; None to compare with none.
    """
    table = _table("endpoint")
    for scorer in profile.scorers:
        table.add_column(f"{scorer.name} * {scorer.weight:g}", justify="right", no_wrap=True)
    before = () if totals_before is None else ("before",)
    for heading in ("total", *before, "waiting", "running", "kv", "age", "in flight"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("")
    inputs = {each.endpoint: each for each in record.inputs}
    places = {name: place for place, name in enumerate(profile.endpoints)}
    picked = {name: rank for rank, name in enumerate(profile.picked)}
    best = sorted(
        places, key=lambda each: (picked.get(each, len(picked)), -profile.totals[places[each]])
    )
    removed = {
        name: f"removed by {each.name}" + (f": {each.reason}" if each.reason else "")
        for each in profile.filters
        for name in each.removed
    }
    for name in islice((*best, *removed), MAX_ROWS):
        place = places.get(name)
        scores = ["" if place is None else _number(each.values[place]) for each in profile.scorers]
        table.add_row(
            plain(name),
            *scores,
            "" if place is None else _number(profile.totals[place]),
            *(() if totals_before is None else (_number(totals_before.get(name)),)),
            *_input_cells(inputs.get(name)),
            "picked" if name in picked else plain(removed.get(name, "")),
        )
    if (more := len(best) + len(removed) - MAX_ROWS) > 0:
        table.add_row(f"and {more} more: --json has all")
    return table


def _input_cells(given: EndpointInputs | None) -> Sequence[str]:
    if given is None:
        return ("",) * 6
    return (
        f"{given.waiting_requests:g}",
        f"{given.running_requests:g}",
        f"{given.kv_cache_usage:.0%}",
        _seconds(given.metrics_age_seconds),
        str(given.in_flight),
        given.state,
    )


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _time(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
