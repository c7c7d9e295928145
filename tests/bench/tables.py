"""The results as tables."""

from collections.abc import Mapping, Sequence

from bench.in_process import Cycle, Path
from bench.through_envoy import ENDPOINTS, PROMPT_CHARS, Cell, Settings, bad_cells
from rich.console import Group
from rich.table import Table
from rich.text import Text

TOP = 30


def through_envoy(cells: Sequence[Cell], settings: Settings) -> Table:
    """One row per mode and number of chunks; the bare servers beside the EPP."""
    table = _table(
        f"CPU per request through Envoy: {ENDPOINTS} endpoints, {PROMPT_CHARS}-byte prompts, chunks"
        f" {settings.pause_ms:g} ms apart",
        *("mode", "chunks", "EPP µs", "bare µs", "grpc.aio µs", "EPP/bare", "above bare µs"),
        *("EPP req/s", "bare req/s", "msgs/req", "EPP n", "errors"),
    )
    by_key = {(cell.mode, cell.chunks, cell.server): cell for cell in cells}
    for mode, chunks in dict.fromkeys((cell.mode, cell.chunks) for cell in cells):
        epp, bare, plain = (by_key[mode, chunks, each] for each in ("epp", "bare", "grpc.aio"))
        table.add_row(
            *(mode, str(chunks), f"{epp.cpu_us:.0f}", f"{bare.cpu_us:.0f}", f"{plain.cpu_us:.0f}"),
            *(f"{epp.cpu_us / bare.cpu_us:.2f}", f"{epp.cpu_us - bare.cpu_us:.0f}"),
            *(f"{epp.requests_per_second:.0f}", f"{bare.requests_per_second:.0f}"),
            *(f"{epp.messages_per_request:.1f}", str(epp.requests)),
            str(sum(len(each.envoy_errors) + len(each.load_errors) for each in (epp, bare, plain))),
        )
    return table


def idle(share: float) -> Text:
    """The cost of scraping."""
    each = share / ENDPOINTS / 20 * 1e6
    return Text(
        f"Idle, {ENDPOINTS} endpoints scraped every 50 ms: {share:.1%} of a core, {each:.0f} µs a"
        " scrape (taken off above, where scrapes are 1 s apart)"
    )


def verdict(cells: Sequence[Cell]) -> Text:
    """Say loudly what went wrong."""
    bad = [
        f"ERRORS in {cell.mode}, {cell.chunks} chunks, {cell.server}:"
        f" envoy {cell.envoy_errors}, load {cell.load_errors}"
        for cell in bad_cells(cells)
    ]
    if bad:
        return Text("\n".join(["!!! THESE NUMBERS DO NOT COUNT !!!", *bad]), style="bold red")
    return Text("Envoy error counters: 0 in all cells; load errors: 0", style="green")


def cycles(measured: Sequence[Cycle]) -> Group:
    """The cycle by size, then the shares."""
    table = _table(
        "One scheduling cycle, default profile, distinct 500-byte prompts",
        *("endpoints", "schedule() µs", "with producers µs", "ratio to 10"),
    )
    for each in measured:
        ratio = each.cycle_us / measured[0].cycle_us
        table.add_row(
            *(str(each.endpoints), f"{each.schedule_us:.1f}", f"{each.cycle_us:.1f}"),
            f"{ratio:.1f}",
        )
    shares = _table("Share per plugin", "plugin", *(str(each.endpoints) for each in measured))
    for name in measured[0].plugins:
        shares.add_row(name, *(f"{each.plugins[name]:.0%}" for each in measured))
    return Group(table, shares)


def paths(measured: Sequence[Path], parse_us: float) -> Group:
    """The straight path without a transport."""
    table = _table(
        "Everything above the transport, in process, Envoy's own messages, 10 endpoints",
        *("mode", "chunks", "messages", "µs/request", "without log line µs"),
    )
    for each in measured:
        table.add_row(
            *(each.mode, str(each.chunks), str(each.messages)),
            *(f"{each.logged_us:.1f}", f"{each.silent_us:.1f}"),
        )
    return Group(table, Text(f"Parsing a body with a 500-byte prompt: {parse_us:.1f} µs"))


def burst(
    served: Mapping[str, int],
    errors: Mapping[str, str],
    endpoints: int,
    scrapes: str,
    most: int | None,
) -> Text:
    """How evenly a burst was spread; loud if by more than ``most``."""
    counts = [*served.values(), *[0] * (endpoints - len(served))]
    spread = max(counts) - min(counts)
    good = not errors and (most is None or spread <= most)
    text = f"Burst of {sum(counts)} over {endpoints}, {scrapes}: {sorted(counts)}, spread {spread}"
    if not good:
        text += f"  !!! expected at most {most}, and no errors: {errors}"
    return Text(text, style="green" if good else "bold red")


def hotspots(
    functions: Sequence[tuple[str, float, float, float]],
    lines: Sequence[tuple[str, float]],
    mode: str,
) -> Group:
    """The most expensive functions and lines."""
    table = _table(
        f"Straight path, {mode}: functions by own time (cProfile, inflated)",
        *("function", "calls/req", "own µs/req", "cumulative µs/req"),
    )
    for name, calls, own, total in functions[:TOP]:
        table.add_row(name, f"{calls:.1f}", f"{own:.2f}", f"{total:.1f}")
    sampled = _table(
        f"Straight path, {mode}: lines by time in and below them (samples)", "line", "share"
    )
    for line, share in lines[: 2 * TOP]:
        sampled.add_row(line, f"{share:.1%}")
    return Group(table, sampled)


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
