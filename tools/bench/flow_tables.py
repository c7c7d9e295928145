"""Tables of the flow control figures, compared with the targets."""

from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tools.bench.flow_control import (
    CANCEL_MS,
    CANCELLED,
    FLOWS,
    ORDER_CELLS,
    Cancellation,
    Costs,
    Ordered,
    Row,
    Speed,
)
from tools.bench.tables import new_table

AIMS = dict(zip(FLOWS, (20_000, 8_000), strict=True))
"""Least dispatches a second in flow control alone, by flows."""
STRAIGHT_AIM_US = 10.0
"""Most that flow control may cost a request that need not wait."""


def matrix(rows: Sequence[Row]) -> Group:
    """The loads, and those that are slower than they may be."""
    table = new_table(
        "Flow control: dispatches per second of CPU time; µs from a free slot to the next dispatch",
        *("slots, bands, flows, callers", "alone", "p50", "p99", "whole director", "p50", "p99"),
    )
    slow = []
    for row in rows:
        cell = row.alone.cell
        name = f"{cell.limit or 'free'}, {cell.bands}, {cell.flows}, {cell.callers}"
        table.add_row(name, *_speed(row.alone), *_speed(row.whole))
        if row.alone.per_second < AIMS[cell.flows]:
            slow.append(f"{name}: {row.alone.per_second:.0f}")
    least = " and ".join(f"{aim} at {flows} flows" for flows, aim in AIMS.items())
    return Group(table, _verdict(f"at least {least}, alone", "; ".join(slow)))


def orders(measured: Sequence[Ordered]) -> Table:
    """Policies and session plugins, as multiples of the defaults in the same run."""
    table = new_table(
        "Orders, flow control alone: dispatches per second (part of the defaults'), p50 µs",
        "order",
        *(f"{each.limit} slots, {each.flows} flows, {each.callers}" for each in ORDER_CELLS),
    )
    base = measured[0].speeds
    for each in measured:
        table.add_row(
            each.name,
            *(
                f"{speed.per_second:.0f} ({speed.per_second / of.per_second:.3f})"
                f", {_us(speed.p50_us)}"
                for speed, of in zip(each.speeds, base, strict=True)
            ),
        )
    return table


def costs(measured: Costs) -> Group:
    """Cost of a request with and without flow control."""
    table = new_table("A request in a whole director, µs", "", "µs", "off is 1")
    for name, us in (
        ("flow control off", measured.off_us),
        ("on, it need not wait", measured.straight_us),
        ("on, it has waited", measured.queued_us),
    ):
        table.add_row(name, f"{us:.1f}", f"{us / measured.off_us:.2f}")
    more = measured.straight_us - measured.off_us
    fault = f"{more:.1f}" if more > STRAIGHT_AIM_US else ""
    return Group(
        table, _verdict(f"{more:.1f} µs for one that need not wait, ≤ {STRAIGHT_AIM_US:g}", fault)
    )


def churn(measured: Speed) -> Text:
    """Flows that come and go."""
    return Text(
        f"Every request of a flow of its own, more of them than are kept:"
        f" {measured.per_second:.0f} dispatches per second"
    )


def cancellations(measured: Sequence[Cancellation]) -> Table:
    """Requests that are cancelled at the same time."""
    table = new_table(
        f"{CANCELLED} requests wait, and {CANCEL_MS} ms later all give up: whole director",
        *("how", "to begin to wait, µs", "to leave, µs", "loop held up at most, ms"),
    )
    for each in measured:
        table.add_row(
            each.how, f"{each.enqueue_us:.1f}", f"{each.leave_us:.1f}", f"{each.longest_ms:.1f}"
        )
    return table


def idle(shares: Mapping[str, float]) -> Text:
    """CPU use of an idle EPP."""
    text = ", ".join(f"{name} {share:.3%}" for name, share in shares.items())
    return Text(f"Without requests, scraped once a minute, cores with flow control {text}")


def _speed(speed: Speed) -> tuple[str, str, str]:
    return f"{speed.per_second:.0f}", _us(speed.p50_us), _us(speed.p99_us)


def _us(us: float | None) -> str:
    return "-" if us is None else f"{us:.0f}"


def _verdict(aim: str, fault: str) -> Text:
    text = f"{aim}: not met: {fault}" if fault else f"{aim}: met"
    return Text(text, style="red" if fault else "green")
