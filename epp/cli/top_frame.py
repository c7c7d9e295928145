"""Builds one frame of ``epp top`` from the events of the live page."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epp.cli.debug_pages import DebugPageError, plain
from epp.cli.queue_tables import titled_table

NONE: Final = "-"
_RANK: Final = {"ejected": 0, "suspect": 1, "probing": 2, "slow": 3, "draining": 4}
_SOUND: Final = len(_RANK)
_STYLES: Final = {"ejected": "bold red", "suspect": "yellow", "probing": "yellow", "slow": "yellow"}
_LEVELS: Final = {"error": ("Problem", "bold red"), "warning": ("Warning", "yellow")}


class LiveState:
    """The state of the pool, from the events."""

    def __init__(self) -> None:
        self.is_known = False
        self.has_rates = False
        """Whether a second has passed, after which the events have rates."""
        self.stalled = ""
        self.pool = ""
        self.problems: Sequence[Sequence[str]] = ()
        self.summary: Mapping[str, Any] = {}
        self._columns: Sequence[str] = ()
        self._point_columns: Sequence[str] = ()
        self._rows: list[list[Any]] = []
        self._point: Sequence[Any] = ()

    def take(self, kind: str, data: bytes) -> None:
        """Apply an event.

        Raises:
            PageError: The event has a format that this version does not know.
        """
        try:
            self._take(kind, msgspec.json.decode(data))
        except (msgspec.DecodeError, LookupError, ValueError, TypeError) as error:
            raise DebugPageError(
                f"an event cannot be read ({error}); is the endpoint picker of another version?"
            ) from None

    def _take(self, kind: str, event: Mapping[str, Any]) -> None:
        self.stalled = event["text"] if kind == "stalled" else ""
        if kind == "snapshot":
            self.has_rates = self.has_rates or len(event["points"]) > 1
            self.is_known = True
            self.pool, self.problems = event["pool"], event["problems"]
            self._columns, self._point_columns = event["columns"], event["point_columns"]
            self._rows, self.summary = event["rows"], event["summary"]
            self._point = event["points"][-1]
        elif kind == "change":
            self.has_rates = True
            for index, cells in event["rows"].items():
                for column, value in cells.items():
                    self._rows[int(index)][int(column)] = value
            self.problems = event.get("problems", self.problems)
            self._point, self.summary = event["point"], event["summary"]

    def shown_state(self, row: Mapping[str, Any]) -> str:
        """Return ``draining`` or ``slow`` if it applies to an endpoint, else its health."""
        if row["draining"]:
            return "draining"
        is_slow = row["name"] in self.summary["slow"] and row["state"] not in _RANK
        return "slow" if is_slow else str(row["state"])

    @property
    def point(self) -> Mapping[str, Any]:
        """The last point of the charts."""
        return dict(zip(self._point_columns, self._point, strict=True))

    def endpoints(self) -> list[dict[str, Any]]:
        """Return the endpoints: first those with problems, then by length of queue."""
        rows = [dict(zip(self._columns, row, strict=True)) for row in self._rows]
        return sorted(
            rows,
            key=lambda row: (_RANK.get(self.shown_state(row), _SOUND), -row["queue"], row["name"]),
        )


def frame(
    state: LiveState, decisions: Sequence[Mapping[str, Any]] | None, *, lines: int
) -> RenderableType:
    """Return one frame.

    Args:
        state: The state of the pool.
        decisions: The newest decisions; None if explanations are off.
        lines: Maximum endpoints.
    """
    return Group(*_parts(state, decisions, lines))


def _parts(
    state: LiveState, decisions: Sequence[Mapping[str, Any]] | None, lines: int
) -> Iterator[RenderableType]:
    if state.stalled:
        yield Text(f"Problem: {plain(state.stalled)}", style="bold red")
    if not state.is_known:
        return
    rows, point = state.endpoints(), state.point
    yield Text.assemble(
        ("Endpoint picker ", "bold"), plain(state.pool), f": {_count(len(rows), 'endpoint')}, ",
        f"{_amount(point['requests_per_second'])} requests/s, ",
        f"{_amount(point['errors_per_second'])} errors/s, ",
        f"{point['in_flight']} in flight, {point['waiting']} queued",
    )  # fmt: skip
    first = "time to first token" if state.summary["sees_bodies"] else "response head after"
    yield Text(
        f"{first} p50 {_seconds(point['first_byte_p50'])}, p90 {_seconds(point['first_byte_p90'])};"
        f" decision p50 {_seconds(point['decision_p50'])}, p99 {_seconds(point['decision_p99'])}"
    )
    for level, text in state.problems:
        word, style = _LEVELS.get(level, ("Note", "dim"))
        yield Text.assemble((f"{word}: ", style), plain(text))
    yield ""
    yield _fleet(state, rows[:lines])
    if len(rows) > lines:
        yield f"and {_count(len(rows) - lines, 'endpoint')} more"
    yield ""
    if decisions is None:
        yield "Decisions are not shown: explanations are off (--explain-decisions of epp serve)."
    elif decisions:
        yield _decisions(decisions)
    else:
        yield "No decision yet."


def _fleet(state: LiveState, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = titled_table("Fleet", "endpoint", "health")
    for name in ("queue", "running", "KV", "in flight", "share", "ended/s", "failed/s", "duration",
                 "metrics"):  # fmt: skip
        table.add_column(name, justify="right")
    table.add_column("role")
    table.add_column("why", overflow="fold")
    for row in rows:
        health, age = state.shown_state(row), row["metrics_age"]
        table.add_row(
            plain(row["name"]),
            Text(health, style=_STYLES.get(health, "")),
            _amount(row["queue"]),
            str(row["running"]),
            _percent(row["kv_usage"]),
            str(row["in_flight"]),
            _percent(row["picked_share"]),
            _amount(row["per_second"]),
            _amount(row["failed_per_second"]),
            _seconds(row["seconds"]),
            "never" if age is None else f"{age:g} s",
            plain(row["role"] or "all"),
            plain(row["draining"] or row["reason"]),
        )
    return table


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Table:
    table = titled_table("Newest decisions", "request", "model", "endpoint", "result", "why")
    for line in islice(decisions, 8):
        status = line["outcome"] and (line["status"] or line["outcome"])
        table.add_row(
            plain(line["request_id"])[:13],
            plain(line["model"]),
            plain(line["endpoint"] or "refused"),
            plain(str(status or "in flight")),
            plain(line["why"]),
        )
    return table


def _count(number: int, one: str) -> str:
    return f"{number} {one}{'' if number == 1 else 's'}"


def _amount(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.1f} s" if value >= 1.0 else f"{value * 1000:.3g} ms"
