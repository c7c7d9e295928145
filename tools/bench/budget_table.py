"""Tables of the CPU budget: samples through Envoy, and calls timed in isolation."""

from collections.abc import Sequence

from rich.table import Table

from tools.bench import stacks
from tools.bench.budget import Budget
from tools.bench.calls import Call
from tools.bench.gateways import Case, Server
from tools.bench.in_process import Path
from tools.bench.tables import named, new_table

TOP = 6


def parts(budgets: Sequence[Budget], path: Path, calls: Sequence[Call]) -> Table:
    """The parts of one case, each with its calls; below, the whole and the bare servers."""
    by_server = {budget.server: budget for budget in budgets if budget.case == path.case}
    epp, bare = by_server[Server.EPP], by_server[Server.BARE]
    table = new_table(
        f"Budget by part, {named(path.case)}: sampled through Envoy, counted in process",
        *("part, its calls", "ns a call", "calls/request", "counted µs", "sampled µs", "share"),
        "of bare µs",
    )
    shares = epp.profile.parts if epp.profile else {}
    for part in stacks.PARTS:
        own = [call for call in calls if call.part == part]
        if not own and part not in shares:
            continue
        table.add_row(
            *(part, "", "", f"{sum(call.us for call in own):.1f}" if own else "-"),
            *(f"{epp.us(part):.1f}", f"{shares.get(part, 0.0):.0%}", f"{bare.us(part):.1f}"),
            style="bold",
        )
        for call in own:
            table.add_row(
                f"  {call.name}", f"{call.ns:.0f}", f"{call.per_request:g}", f"{call.us:.2f}"
            )
    table.add_section()
    samples = epp.profile.samples if epp.profile else 0
    table.add_row(
        *(f"EPP, {samples} samples", "", "", f"{path.epp_us:.1f}", f"{epp.cpu_us:.1f}"),
        *("", f"{bare.cpu_us:.1f}"),
    )
    table.add_row("bare transport", "", "", f"{path.bare_us:.1f}", f"{bare.cpu_us:.1f}")
    plain_us = by_server[Server.GRPC_AIO].cpu_us
    table.add_row("bare grpc.aio", "", "", "-", f"{plain_us:.1f}")
    return table


def by_case(budgets: Sequence[Budget]) -> Table:
    """The sampled parts of every case side by side."""
    cases = dict.fromkeys(budget.case for budget in budgets)
    table = new_table(
        "Budget by part, sampled through Envoy, µs per request: EPP (bare)",
        *("part", *(named(case) for case in cases)),
    )
    by_key = {(budget.case, budget.server): budget for budget in budgets}
    pairs = [(by_key[case, Server.EPP], by_key[case, Server.BARE]) for case in cases]
    for part in stacks.PARTS:
        if any(each.us(part) for pair in pairs for each in pair):
            table.add_row(part, *(f"{e.us(part):.1f} ({b.us(part):.1f})" for e, b in pairs))
    table.add_section()
    table.add_row("all", *(f"{epp.cpu_us:.1f} ({bare.cpu_us:.1f})" for epp, bare in pairs))
    plain = (by_key[case, Server.GRPC_AIO] for case in cases)
    table.add_row("bare grpc.aio", *(f"{each.cpu_us:.1f}" for each in plain))
    return table


def functions(budgets: Sequence[Budget], case: Case) -> Table:
    """The costliest functions of the EPP above the transport and in it."""
    (epp,) = (b for b in budgets if b.case == case and b.server is Server.EPP)
    table = new_table(
        f"Costliest functions, {named(case)}, sampled through Envoy, µs per request",
        *("function", "part", "own", "with what it calls"),
    )
    found = epp.profile.functions if epp.profile else ()
    for is_transport in (False, True):
        rows = [each for each in found if (each.part in stacks.TRANSPORT) is is_transport]
        for each in rows[:TOP]:
            own, total = each.own * epp.cpu_us, each.total * epp.cpu_us
            table.add_row(each.name, each.part, f"{own:.2f}", f"{total:.2f}")
        table.add_section()
    return table
