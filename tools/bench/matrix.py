"""CPU of a request by what it depends on: mode, chunks of the response, length, endpoints.

``.venv/bin/python -m tools.bench --only matrix``

One thing varies at a time. The EPP and the bare server on its transport take turns behind the same
Envoy; what counts is the multiple.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Group
from rich.text import Text

from epp.lab.envoy import Mode
from tools.bench import envoy_table, processes, through_envoy
from tools.bench.gateways import ENDPOINTS, Case, Server
from tools.bench.tables import held, named, new_table
from tools.bench.through_envoy import Cell, Settings

SERVERS = (Server.EPP, Server.BARE)
CHUNKS = (1, 100, 1000)
SIZES = (1_000, 16_000, 256_000, 1_000_000)
COUNTS = (ENDPOINTS, 100, 1000)
MANY_CHUNKS_PAUSE_MS = 1.0
"""A response of 1000 chunks 10 ms apart would take ten seconds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The cells for one number of endpoints."""

    endpoints: int
    cells: list[Cell]


async def measure(settings: Settings) -> list[Measured]:
    """Measure all cells."""
    measured = []
    for endpoints in COUNTS:
        async with processes.upstream(endpoints) as upstream:
            addresses = upstream.ready["endpoints"]
            cells = await through_envoy.measure(settings, addresses, SERVERS, _cases(endpoints))
            if endpoints == ENDPOINTS:
                slow = replace(settings, pause_ms=MANY_CHUNKS_PAUSE_MS)
                many = [Case(mode, chunks=CHUNKS[-1]) for mode in Mode]
                cells += await through_envoy.measure(slow, addresses, SERVERS, many)
            measured.append(Measured(endpoints, cells))
    return measured


def _cases(endpoints: int) -> list[Case]:
    cases = [Case(mode) for mode in Mode]
    if endpoints == ENDPOINTS:
        cases += [Case(mode, chunks=CHUNKS[1]) for mode in Mode]
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
    cells = [cell for each in measured for cell in each.cells]
    per_chunk = [text for mode in Mode if (text := _per_chunk(measured[0].cells, mode))]
    return Group(shown, Text("\n".join(per_chunk)), envoy_table.verdict(cells))


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
