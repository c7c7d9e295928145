"""CPU of a request by mode, chunks of the response, length, and number of endpoints.

``.venv/bin/python -m tools.bench --only matrix``

One parameter varies at a time. The EPP and the bare server on its transport take turns behind the
same Envoy; the multiple counts.

Responses in many chunks last a second, so 16 in parallel are 16 requests a second. Periodic work
of the EPP while requests are open (the timer of the loop's lag, scrapes) is not in its idle cost,
and costs as much as the requests there. So these cases are also measured with four times as many
requests: the difference is the cost of the requests, the rest that of being loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.console import Group
from rich.table import Table
from rich.text import Text

from epp.lab.envoy import Mode
from tools.bench import envoy_table, processes, through_envoy
from tools.bench.gateways import CONCURRENCY, ENDPOINTS, Case, Server
from tools.bench.tables import held, named, new_table
from tools.bench.through_envoy import Cell, Settings

SERVERS = (Server.EPP, Server.BARE)
CHUNKS = (1, 100, 1000)
SIZES = (1_000, 16_000, 256_000, 1_000_000)
COUNTS = (ENDPOINTS, 100, 1000)
BUSIER = 4
"""Factor of the second load for responses in many chunks."""
MANY_CHUNKS_PAUSE_MS = 1.0
"""A response of 1000 chunks 10 ms apart would take ten seconds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The cells for one number of endpoints."""

    endpoints: int
    cells: list[Cell]
    busier: list[Cell] = field(default_factory=list)
    """The cells of many chunks with `BUSIER` times as many parallel requests."""


@dataclass(frozen=True, slots=True)
class Split:
    """CPU of a server without its idle cost, split by means of two loads."""

    request_us: float
    """What one more request costs."""
    loaded_ms: float
    """What it costs in a second to have requests at all."""

    @classmethod
    def of(cls, few: Cell, many: Cell) -> "Split | None":
        """Return the parts of two cells of a server and case.

        None is returned if the second load was not larger: the machine had no CPU left for it.
        """
        rates = few.requests_per_second, many.requests_per_second
        if rates[1] <= rates[0]:
            return None
        seconds = [cell.median_us * rate for cell, rate in zip((few, many), rates, strict=True)]
        request_us = (seconds[1] - seconds[0]) / (rates[1] - rates[0])
        if request_us <= 0:
            return None
        return cls(request_us, (seconds[0] - request_us * rates[0]) / 1000)


async def measure(settings: Settings) -> list[Measured]:
    """Measure all cells."""
    measured = []
    for endpoints in COUNTS:
        async with processes.upstream(endpoints) as upstream:
            addresses = upstream.ready["endpoints"]
            cases = _cases(endpoints)
            (cells,) = await through_envoy.measure(settings, addresses, SERVERS, cases)
            each = Measured(endpoints, cells)
            if endpoints == ENDPOINTS:
                slow = replace(settings, pause_ms=MANY_CHUNKS_PAUSE_MS)
                for chunks, pace in zip(CHUNKS[1:], (settings, slow), strict=True):
                    await _add_chunks(each, chunks, pace, addresses)
            measured.append(each)
    return measured


async def _add_chunks(
    measured: Measured, chunks: int, settings: Settings, addresses: Sequence[str]
) -> None:
    cases = [Case(mode, chunks=chunks) for mode in Mode]
    loads = (CONCURRENCY, BUSIER * CONCURRENCY)
    few, many = await through_envoy.measure(settings, addresses, SERVERS, cases, loads)
    measured.cells.extend(few)
    measured.busier.extend(many)


def _cases(endpoints: int) -> list[Case]:
    cases = [Case(mode) for mode in Mode]
    if endpoints == ENDPOINTS:
        cases += [Case(mode, prompt_bytes=size) for mode in Mode for size in SIZES]
    return cases


def table(measured: Sequence[Measured]) -> Group:
    """Return a row for each cell."""
    shown = new_table(
        "CPU µs per request through Envoy, medians of the rounds; EPP / bare (range)",
        *("endpoints", "case", "EPP", "bare", "EPP - bare", "EPP / bare"),
    )
    for each in measured:
        by_key = {(cell.case, cell.server): cell for cell in each.cells}
        for case in dict.fromkeys(cell.case for cell in each.cells):
            epp, bare = (by_key[case, server] for server in SERVERS)
            multiple, _ = held(envoy_table.rounds(epp, bare), float("inf"))
            shown.add_row(
                str(each.endpoints),
                named(case),
                f"{epp.median_us:.0f}",
                f"{bare.median_us:.0f}",
                f"{epp.median_us - bare.median_us:.0f}",
                multiple,
            )
    cells = [cell for each in measured for cell in (*each.cells, *each.busier)]
    per_chunk = [text for mode in Mode if (text := _per_chunk(measured[0].cells, mode))]
    split = _split_table(measured[0])
    return Group(shown, split, Text("\n".join(per_chunk)), envoy_table.verdict(cells))


def _split_table(measured: Measured) -> Table:
    """Return what of the cost of responses in many chunks is the request's."""
    shown = new_table(
        f"Responses in many chunks with {CONCURRENCY} and {BUSIER * CONCURRENCY} in parallel: CPU"
        " µs of one more request, and ms a second for being loaded",
        *("case", "EPP", "bare", "EPP / bare", "EPP loaded", "bare loaded"),
    )
    few = {(cell.case, cell.server): cell for cell in measured.cells}
    many = {(cell.case, cell.server): cell for cell in measured.busier}
    for case in dict.fromkeys(cell.case for cell in measured.busier):
        epp, bare = (Split.of(few[case, server], many[case, server]) for server in SERVERS)
        if epp is None or bare is None:
            shown.add_row(named(case), *["-"] * 5)
            continue
        shown.add_row(
            named(case),
            *(f"{epp.request_us:.0f}", f"{bare.request_us:.0f}"),
            f"{epp.request_us / bare.request_us:.2f}",
            *(f"{each.loaded_ms:.1f}" for each in (epp, bare)),
        )
    return shown


def _per_chunk(cells: Sequence[Cell], mode: Mode) -> str:
    """Return what a further chunk costs, from 1 and the most."""
    by_key = {(cell.case, cell.server): cell for cell in cells}
    one, many = Case(mode), Case(mode, chunks=CHUNKS[-1])
    if (many, Server.EPP) not in by_key:
        return ""
    epp, bare = (
        (by_key[many, server].median_us - by_key[one, server].median_us) / (CHUNKS[-1] - 1)
        for server in SERVERS
    )
    return f"A further chunk, {mode.value}: EPP {epp:.2f}, bare {bare:.2f} µs"
