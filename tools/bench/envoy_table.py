"""Tables of the runs through Envoy: multiples of the bare server, compared with the targets."""

from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Group
from rich.table import Table
from rich.text import Text

from epp.lab.envoy import Mode
from tools.bench.gateways import CONCURRENCY, ENDPOINTS, Case, Server
from tools.bench.tables import BARE_AIM, CHUNK_AIM_US, EPP_AIMS, held, named, new_table
from tools.bench.through_envoy import CHUNKS, Cell, Settings, bad_cells

Cells = Mapping[tuple[Case, Server], Cell]


def cells(measured: Sequence[Cell], settings: Settings) -> Group:
    """One row per case; the bare servers beside the EPP, and what became of the aims."""
    by_key = {(cell.case, cell.server): cell for cell in measured}
    cases = tuple(dict.fromkeys(cell.case for cell in measured))
    tables = [_multiples(by_key, cases, settings)]
    full_duplex = [Case(Mode.FULL_DUPLEX, chunks) for chunks in (1, CHUNKS)]
    if all((case, Server.EPP) in by_key for case in full_duplex):
        tables.append(_chunks(by_key))
    if any(cell.server is Server.EPP_GRPCIO for cell in measured):
        tables.append(_grpcio(by_key, cases))
    return Group(*tables)


def _multiples(by_key: Cells, cases: Sequence[Case], settings: Settings) -> Table:
    table = new_table(
        f"CPU µs per request through Envoy; {ENDPOINTS} endpoints, {CONCURRENCY} in parallel,"
        f" chunks {settings.pause_ms:g} ms apart, medians of the rounds (range)",
        *("case", "EPP", "bare", "grpc.aio", "EPP/bare", "aim", "bare/grpc.aio", "aim"),
        *("EPP req/s", "messages", "n"),
    )
    for case in cases:
        epp, bare, plain = (
            by_key[case, each] for each in (Server.EPP, Server.BARE, Server.GRPC_AIO)
        )
        table.add_row(
            named(case),
            *(f"{each.median_us:.0f}" for each in (epp, bare, plain)),
            *held(rounds(epp, bare), EPP_AIMS[case.prompt_bytes]),
            *held(rounds(bare, plain), BARE_AIM),
            *(f"{epp.requests_per_second:.0f}", f"{epp.messages_per_request:.1f}"),
            str(epp.requests),
        )
    return table


def _chunks(by_key: Cells) -> Table:
    table = new_table(
        f"A further response chunk in full duplex, µs: from 1 and {CHUNKS}",
        *("EPP", "bare", "grpc.aio", "EPP - bare", "aim"),
    )
    each = {server: _per_chunk(by_key, server) for server in (Server.EPP, Server.BARE)}
    differences = [e - b for e, b in zip(each[Server.EPP], each[Server.BARE], strict=True)]
    table.add_row(
        *(f"{median(values):.2f}" for values in each.values()),
        f"{median(_per_chunk(by_key, Server.GRPC_AIO)):.2f}",
        *held(differences, CHUNK_AIM_US),
    )
    return table


def _per_chunk(by_key: Cells, server: Server) -> list[float]:
    one, many = (by_key[Case(Mode.FULL_DUPLEX, chunks), server] for chunks in (1, CHUNKS))
    return [(us - one.median_us) / (CHUNKS - 1) for us in many.cpu_us]


def _grpcio(by_key: Cells, cases: Sequence[Case]) -> Table:
    table = new_table(
        "The same on --transport grpcio",
        *("case", "EPP", "bare", "EPP/bare", "EPP on http2/EPP on grpcio"),
    )
    for case in cases:
        epp, bare = by_key[case, Server.EPP_GRPCIO], by_key[case, Server.BARE_GRPCIO]
        own = by_key[case, Server.EPP]
        table.add_row(
            named(case),
            *(f"{epp.median_us:.0f}", f"{bare.median_us:.0f}"),
            *(f"{median(rounds(epp, bare)):.2f}", f"{median(rounds(own, epp)):.2f}"),
        )
    return table


def rounds(one: Cell, other: Cell) -> list[float]:
    """Return the multiple in each round: in turns, so that both had the same neighbours."""
    return [mine / its for mine, its in zip(one.cpu_us, other.cpu_us, strict=True)]


def idle(share: float) -> Text:
    """The cost of scraping."""
    each = share / ENDPOINTS / 20 * 1e6
    return Text(
        f"Idle, {ENDPOINTS} endpoints scraped every 50 ms: {share:.1%} of a core, {each:.0f} µs a"
        " scrape (taken off above, where scrapes are 1 s apart)"
    )


def verdict(measured: Sequence[Cell]) -> Text:
    """Say loudly what went wrong."""
    bad = [
        f"ERRORS in {cell.case}, {cell.server.value}:"
        f" envoy {cell.envoy_errors}, load {cell.load_errors}"
        for cell in bad_cells(measured)
    ]
    if bad:
        return Text("\n".join(["!!! THESE NUMBERS DO NOT COUNT !!!", *bad]), style="bold red")
    return Text("Envoy error counters: 0 in all cells; load errors: 0", style="green")
