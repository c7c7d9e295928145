"""Tables of the in-process measurements and of the burst."""

from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Group
from rich.table import Table
from rich.text import Text

from epp.lab.envoy import Mode
from tools.bench.cycle import Cycle, Prefix
from tools.bench.gateways import ENDPOINTS, PROMPT_BYTES, Case
from tools.bench.in_process import Path

EPP_AIMS: Mapping[int, float] = {PROMPT_BYTES: 2.5, 16_000: 3.5, 400_000: 2.2}
"""Most that the EPP may cost, as a multiple of the bare server, by length of the prompt."""
BARE_AIM = 0.15
"""Most that the bare server may cost, as a multiple of grpc.aio."""
CHUNK_AIM_US = 3.0
"""Most that a further chunk of a response may cost above the bare server, usage looked for."""

CYCLE_AIMS_US: Mapping[tuple[int, int], float] = {
    (10, 1_000): 30,
    (10, 16_000): 60,
    (10, 1_000_000): 2000,
    (100, 1_000): 120,
    (1000, 1_000): 1000,
}
"""Most that a cycle may take, by endpoints and characters of the prompt."""


def named(case: Case) -> str:
    """Return a case in words."""
    words = [case.mode.value]
    if case.chunks > 1:
        words.append(f"{case.chunks} chunks")
    if case.prompt_bytes != Case(case.mode).prompt_bytes:
        words.append(f"{case.prompt_bytes} B")
    return ", ".join(words)


def paths(measured: Sequence[Path]) -> Group:
    """The whole path in process; then what a chunk adds to it."""
    table = new_table(
        "Whole path in process: Envoy's bytes into data_received, replies thrown away;"
        f" {ENDPOINTS} endpoints, µs per request",
        *("case", "messages", "EPP", "bare", "EPP/bare", "EPP - bare", "EPP without log line"),
    )
    for each in measured:
        table.add_row(
            *(named(each.case), str(each.messages), f"{each.epp_us:.1f}", f"{each.bare_us:.1f}"),
            *(f"{each.epp_us / each.bare_us:.2f}", f"{each.epp_us - each.bare_us:.1f}"),
            f"{each.silent_us:.1f}",
        )
    by_chunks = {each.case.chunks: each for each in measured if each.case.mode is Mode.FULL_DUPLEX}
    (_, one), (chunks, many) = sorted(by_chunks.items())
    epp_us = (many.epp_us - one.epp_us) / (chunks - 1)
    bare_us = (many.bare_us - one.bare_us) / (chunks - 1)
    text = (
        f"A further response chunk in full duplex, in process: EPP {epp_us:.2f}, bare {bare_us:.2f}"
    )
    return Group(
        table, Text(f"{text}, difference {epp_us - bare_us:.2f} µs (aim {CHUNK_AIM_US:g})")
    )


def cycles(measured: Sequence[Cycle]) -> Group:
    """The cycle by size, then the shares."""
    table = new_table(
        "One scheduling cycle: producers and schedule(), default profile, metrics on, index"
        " insertion apart, µs",
        *("endpoints", "prompt", "new prompt", "known prompt", "known to all", "aim", "verdict"),
    )
    for each in measured:
        aim = CYCLE_AIMS_US.get((each.endpoints, each.prompt_characters))
        met = aim is None or max(each.new_us, each.known_us) <= aim
        verdict = Text("met" if met else "not met", style="green" if met else "red")
        table.add_row(
            *(str(each.endpoints), _short(each.prompt_characters)),
            *(f"{each.new_us:.1f}", f"{each.known_us:.1f}", f"{each.held_by_all_us:.1f}"),
            *(("", "") if aim is None else (f"{aim:g}", verdict)),
        )
    cells = [f"{each.endpoints}/{_short(each.prompt_characters)}" for each in measured]
    shares = new_table("Share per plugin, known prompt: endpoints/characters", "plugin", *cells)
    for name in measured[0].plugins:
        shares.add_row(name, *(f"{each.plugins[name]:.0%}" for each in measured))
    return Group(table, shares)


def _short(characters: int) -> str:
    return f"{characters // 1000}k" if characters < 1_000_000 else f"{characters // 1_000_000}M"


def prefixes(measured: Sequence[Prefix]) -> Table:
    """The prefix producer by prompt size."""
    table = new_table(
        "Data producers and prefix index, 10 endpoints with full caches",
        *("prompt", "new prompt µs", "known prompt µs", "enter new µs", "enter known µs"),
    )
    for each in measured:
        table.add_row(
            *(_short(each.prompt_characters), f"{each.new_us:.1f}", f"{each.known_us:.1f}"),
            *(f"{each.enter_new_us:.1f}", f"{each.enter_known_us:.1f}"),
        )
    return table


def burst(
    served: Mapping[str, int],
    errors: Mapping[str, str],
    endpoints: int,
    scrapes: str,
    most: int | None,
) -> Text:
    """Return a text on the spread of a burst, highlighted above ``most``."""
    counts = [*served.values(), *[0] * (endpoints - len(served))]
    spread = max(counts) - min(counts)
    good = not errors and (most is None or spread <= most)
    text = f"Burst of {sum(counts)} over {endpoints}, {scrapes}: {sorted(counts)}, spread {spread}"
    if not good:
        text += f"  !!! expected at most {most}, and no errors: {errors}"
    return Text(text, style="green" if good else "bold red")


def held(values: Sequence[float], aim: float) -> tuple[str, Text]:
    """Return the columns of a value with an aim."""
    middle = median(values)
    met = middle <= aim
    verdict = Text(f"≤ {aim:g} {'met' if met else 'not met'}", style="green" if met else "red")
    spread = f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else ""
    return f"{middle:.2f}{spread}", verdict


def new_table(title: str, first: str, *columns: str) -> Table:
    """Return a table with a column of names and columns of numbers."""
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
