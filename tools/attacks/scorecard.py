"""Scorecard: figures of legitimate clients and of the endpoint picker against their targets."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tools.attacks.honest import Honest, Path
from tools.faults.outcome import percentile

MB = 1_000_000
HELD_BYTES = 512 << 20
"""The default of --max-held-bytes."""
MAX_RSS_BYTES = HELD_BYTES + 200 * MB
STOP_SECONDS = 10.0
"""Time within which the endpoint picker must end after SIGTERM; its drain takes 1 s here."""


@dataclass(slots=True, kw_only=True)
class Figures:
    """Measurements of one run."""

    honest: Honest
    rss_bytes: int
    envoy_rss_bytes: int
    pause_wall_seconds: float
    pause_own_seconds: float
    requests: float
    """Streams that Envoy opened to the endpoint picker."""
    log_bytes: int
    log_line_bytes: int
    """The longest line."""
    page_bytes: int
    page_seconds: float
    page_failed: int
    left: Mapping[str, float]
    """Gauges that are not 0 afterwards, and counters of faults."""
    settle_seconds: float
    probes: Counter[str]
    cpu_share: float
    """Share of a core that the endpoint picker used."""
    is_killed: bool
    """Whether it was killed because its memory endangered the machine."""
    exit_status: int | None
    """Exit status after SIGTERM; None if it did not end in time."""
    stop_seconds: float
    is_alive: bool
    """Whether it ran until SIGTERM."""
    may_refuse: bool
    """Whether honest requests may be refused, because a client may name any number of flows."""
    log_faults: list[str]
    tallies: dict[str, Counter[str]] = field(default_factory=dict)
    """Outcomes by attack."""

    @property
    def refused(self) -> int:
        """Number of honest requests without the expected response."""
        return self.honest.gateway.failed.total()

    def beyond_envoy(self, percent: int) -> float:
        """Return the seconds by which a percentile exceeds that without the endpoint picker."""
        return _percentile(self.honest.gateway, percent) - _percentile(self.honest.direct, percent)

    @property
    def log_bytes_a_request(self) -> float:
        """Mean number of bytes logged per request."""
        return self.log_bytes / max(1.0, self.requests)

    @property
    def not_serving(self) -> int:
        """Number of probes that did not return SERVING."""
        return self.probes.total() - self.probes["SERVING"]


def _percentile(path: Path, percent: int) -> float:
    return percentile(path.seconds, percent) if path.seconds else inf


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < inf else "none answered"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the scorecard."""

    name: str
    text: Callable[[Figures], str]
    aim: str = ""
    holds: Callable[[Figures], bool] = lambda _: True
    is_of_time: bool = False
    """Whether it is a time, which is not judged on a shared machine."""


ROWS: tuple[Row, ...] = (
    Row(
        "honest p50 beyond Envoy alone",
        lambda f: _ms(f.beyond_envoy(50)),
        "≤ 10 ms",
        lambda f: f.beyond_envoy(50) <= 0.010,
        is_of_time=True,
    ),
    Row(
        "honest p99 beyond Envoy alone",
        lambda f: _ms(f.beyond_envoy(99)),
        "≤ 150 ms",
        lambda f: f.beyond_envoy(99) <= 0.150,
        is_of_time=True,
    ),
    Row(
        "honest p50 / p99 through the gateway",
        lambda f: (
            f"{_ms(_percentile(f.honest.gateway, 50))} / {_ms(_percentile(f.honest.gateway, 99))}"
        ),
    ),
    Row(
        "honest requests refused or failed",
        lambda f: f"{f.refused} of {f.refused + len(f.honest.gateway.seconds)}",
        "0",
        lambda f: (f.may_refuse or not f.refused) and bool(f.honest.gateway.seconds),
    ),
    Row("500s of the failing server", lambda f: f"{f.honest.gateway.by_failing_server}"),
    Row(
        "RSS, most",
        lambda f: f"{f.rss_bytes / MB:.0f} MB" + (", ended for it" if f.is_killed else ""),
        f"≤ {MAX_RSS_BYTES / MB:.0f} MB",
        lambda f: f.rss_bytes <= MAX_RSS_BYTES,
    ),
    Row("CPU of the endpoint picker", lambda f: f"{f.cpu_share * 100:.0f} %"),
    Row("RSS of Envoy, most", lambda f: f"{f.envoy_rss_bytes / MB:.0f} MB"),
    Row(
        "longest pause of the loop, without its waits for a CPU",
        lambda f: _ms(f.pause_own_seconds),
        "≤ 50 ms",
        lambda f: f.pause_own_seconds <= 0.050,
        is_of_time=True,
    ),
    Row("longest pause of the loop, wall clock", lambda f: _ms(f.pause_wall_seconds)),
    Row(
        "log bytes a request",
        lambda f: f"{f.log_bytes_a_request:.0f}",
        "≤ 4000",
        lambda f: f.log_bytes_a_request <= 4_000,
    ),
    Row("longest line of the log", lambda f: f"{f.log_line_bytes} B"),
    Row(
        "metrics page, most",
        lambda f: f"{f.page_bytes / MB:.1f} MB",
        "≤ 10 MB",
        lambda f: f.page_bytes <= 10 * MB,
    ),
    Row(
        "metrics page, slowest and missing",
        lambda f: f"{_ms(f.page_seconds)}, {f.page_failed}",
    ),
    Row(
        "left afterwards",
        lambda f: (
            ", ".join(f"{name} {value:g}" for name, value in f.left.items())
            or f"nothing after {f.settle_seconds:.0f} s"
        ),
        "nothing",
        lambda f: not f.left,
    ),
    Row(
        "liveness probes without SERVING",
        lambda f: f"{f.not_serving} of {f.probes.total()}",
        "0",
        lambda f: not f.not_serving,
        is_of_time=True,
    ),
    Row("alive", lambda f: "yes" if f.is_alive else "no", "yes", lambda f: f.is_alive),
    Row(
        "ends after SIGTERM",
        lambda f: (
            f"status {f.exit_status}, {f.stop_seconds:.1f} s"
            if f.exit_status is not None
            else "never"
        ),
        "status 0",
        lambda f: f.exit_status == 0,
    ),
    Row(
        "faults in the log",
        lambda f: f"{len(f.log_faults)}",
        "0",
        lambda f: not f.log_faults,
    ),
)


def missed(figures: Figures, *, of_time: bool = True) -> list[str]:
    """Return a line for each missed target; targets for times only with ``of_time``."""
    rows = (row for row in ROWS if of_time or not row.is_of_time)
    return [
        f"{row.name}: {row.text(figures)}, aim {row.aim}" for row in rows if not row.holds(figures)
    ]


def table(named: Mapping[str, Figures]) -> list[str]:
    """Return a table in Markdown with a column for each run; missed targets are bold."""
    lines = [f"| | aim | {' | '.join(named)} |", "|---" * (len(named) + 2) + "|"]
    for row in ROWS:
        cells = [_cell(row, figures) for figures in named.values()]
        lines.append(f"| {row.name} | {row.aim} | {' | '.join(cells)} |")
    return lines


def _cell(row: Row, figures: Figures) -> str:
    text = row.text(figures)
    return text if row.holds(figures) else f"**{text}**"


def short_table(named: Mapping[str, Figures]) -> list[str]:
    """Return a table in Markdown with a line for each run."""
    rows = [row for row in ROWS if row.aim]
    lines = [f"| | {' | '.join(row.name for row in rows)} |", "|---" * (len(rows) + 1) + "|"]
    for name, figures in named.items():
        lines.append(f"| {name} | {' | '.join(_cell(row, figures) for row in rows)} |")
    return lines


def details(figures: Figures) -> Sequence[str]:
    """Return lines with the outcomes that are not in the tables."""
    lines = [f"{name}: {_counts(tally)}" for name, tally in figures.tallies.items()]
    for way, path in (("gateway", figures.honest.gateway), ("direct", figures.honest.direct)):
        if path.failed:
            lines.append(f"honest, {way}: {_counts(path.failed)}")
    if figures.not_serving:
        lines.append(f"liveness: {_counts(figures.probes)}")
    return [*lines, *(f"log: {line}" for line in figures.log_faults)]


def _counts(tally: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in tally.most_common(8)) or "nothing"
