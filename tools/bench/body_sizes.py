"""Cost of a request by body size, compared with the bare transport.

All sizes are measured in process, some also through Envoy. The bare server does not parse bodies;
in full duplex it returns them, as the EPP does.
"""

from collections.abc import Mapping, Sequence

from rich.table import Table

from epp.lab.envoy import Mode
from tools.bench.envoy_table import rounds
from tools.bench.gateways import Case, Server
from tools.bench.in_process import Path
from tools.bench.tables import held, new_table
from tools.bench.through_envoy import Cell

MODES = (Mode.ADAPTIVE, Mode.FULL_DUPLEX)
AIMS: Mapping[int, float | None] = {
    1_000: 2.5,
    16_000: None,
    64_000: None,
    256_000: 1.5,
    1_000_000: 1.5,
    12_000_000: 1.5,
}
"""Most that the EPP may cost, as a multiple of the bare server, by length of the prompt."""
CASES = tuple(Case(mode, prompt_bytes=size) for mode in MODES for size in AIMS)
ENVOY_CASES = tuple(
    Case(mode, prompt_bytes=size) for mode in MODES for size in (1_000, 256_000, 12_000_000)
)
SERVERS = (Server.EPP, Server.BARE)
_COLUMNS = ("EPP", "bare", "EPP - bare", "EPP/bare", "aim")


def paths(measured: Sequence[Path]) -> Table:
    """The whole path in process, one row per mode and size."""
    table = new_table("By length of the prompt, in process, µs per request", "case", *_COLUMNS)
    for each in measured:
        _add_row(table, each.case, each.epp_us, each.bare_us, [each.epp_us / each.bare_us])
    return table


def cells(measured: Sequence[Cell]) -> Table:
    """The same through Envoy: CPU of the servers' processes, medians of the rounds (range)."""
    table = new_table("By length of the prompt, through Envoy, CPU µs", "case", *_COLUMNS)
    by_key = {(cell.case, cell.server): cell for cell in measured}
    for case in dict.fromkeys(cell.case for cell in measured):
        epp, bare = (by_key[case, server] for server in SERVERS)
        _add_row(table, case, epp.median_us, bare.median_us, rounds(epp, bare))
    return table


def _add_row(
    table: Table, case: Case, epp_us: float, bare_us: float, multiples: Sequence[float]
) -> None:
    aim = AIMS[case.prompt_bytes]
    multiple, verdict = held(multiples, aim or float("inf"))
    table.add_row(
        f"{case.mode.value}, {case.prompt_bytes // 1000} KB",
        *(f"{epp_us:.0f}", f"{bare_us:.0f}", f"{epp_us - bare_us:.0f}", multiple),
        verdict if aim else "",
    )
