"""Whether simulation and live fleet agree: TTFT of policies in both, and their order.

A round has one seed, for the traffic and for the endpoint picker's random choices. It has one live
run and several simulated ones, in which requests arrive a few milliseconds later. The range of the
simulated results is the noise: no model can predict the effect of such small differences.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from rich.console import Group
from rich.table import Table
from rich.text import Text

from epp.lab.results import Record, summarise

AIM = 0.15
"""Most that the live p90 may differ from the simulated one, as a share of the latter."""
TIE = 0.10
"""Two policies whose p90 differ by less have no order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One run of a scenario with a policy."""

    ttft_p50_ms: float
    ttft_p90_ms: float
    hit_rate: float
    """Share of prompt tokens that came from a cache."""

    @classmethod
    def of(cls, records: Sequence[Record], warm_up_seconds: float = 0.0) -> "Reading":
        """Summarise requests; a percentile is infinite if none got a token.

        Args:
            records: Finished requests.
            warm_up_seconds: Those sent before are left out.
        """
        summary = summarise([each for each in records if each.started_at >= warm_up_seconds])
        ttft = summary.ttft_ms
        return cls(
            ttft_p50_ms=math.inf if ttft is None else ttft.p50,
            ttft_p90_ms=math.inf if ttft is None else ttft.p90,
            hit_rate=summary.hit_rate or 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReading(Reading):
    """A live run, and the machine's influence on it."""

    outside_p50_ms: float
    """TTFT less the time in the model server: generator, Envoy, endpoint picker, sockets."""
    outside_p90_ms: float
    lag_p99_ms: float
    """How late 99 % of the engines' steps ended at most."""
    late_p99_ms: float
    """How late 99 % of the requests were sent at most."""
    load_average: float
    """Processes of the whole machine that used or wanted a core in its last minute."""
    cpu_shares: Mapping[str, float]
    """Share of one core of each process."""
    why_invalid: str = ""
    """Why it shows the machine and not the gateway; "" if it is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One seed of the traffic."""

    live: LiveReading
    simulated: Sequence[Reading]

    @property
    def simulated_p90_ms(self) -> float:
        """The middle of the simulated runs."""
        return median(each.ttft_p90_ms for each in self.simulated)

    @property
    def ratio(self) -> float:
        """Live p90 divided by the simulated one."""
        return self.live.ttft_p90_ms / self.simulated_p90_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A scenario with one policy, live and simulated."""

    scenario: str
    policy: str
    rounds: Sequence[Round]

    @property
    def valid(self) -> list[Round]:
        """The rounds whose live run is valid."""
        return [each for each in self.rounds if not each.live.why_invalid]

    @property
    def ratios(self) -> list[float]:
        """Live p90 divided by the simulated one, of each valid round."""
        return [each.ratio for each in self.valid]

    @property
    def live_p90_ms(self) -> float:
        """The middle of the valid rounds."""
        return median(each.live.ttft_p90_ms for each in self.valid)

    @property
    def simulated_p90_ms(self) -> float:
        """The middle of the valid rounds."""
        return median(each.simulated_p90_ms for each in self.valid)

    @property
    def noise(self) -> tuple[float, float]:
        """Range of the p90 of simulated runs, divided by the middle of their round."""
        relative = [
            run.ttft_p90_ms / each.simulated_p90_ms
            for each in self.rounds
            for run in each.simulated
        ]
        return min(relative), max(relative)

    @property
    def is_within_aim(self) -> bool | None:
        """Whether the middle of the ratios meets the aim; None without a valid round."""
        return abs(median(self.ratios) - 1) <= AIM if self.ratios else None


def swapped(of_scenario: Iterable[Agreement]) -> list[tuple[str, str]]:
    """Return pairs of policies whose order differs between live and simulated runs."""
    known = [each for each in of_scenario if each.valid]
    return differently_ordered(
        {each.policy: each.live_p90_ms for each in known},
        {each.policy: each.simulated_p90_ms for each in known},
    )


def differently_ordered(
    live: Mapping[str, float], simulated: Mapping[str, float]
) -> list[tuple[str, str]]:
    """Return pairs of policies whose order differs; those within `TIE` have none.

    Args:
        live: Times by policy.
        simulated: Times of the same policies.
    """
    return [
        (one, other)
        for one, other in combinations(live, 2)
        if _order(live[one], live[other]) * _order(simulated[one], simulated[other]) < 0
    ]


def _order(one: float, other: float) -> int:
    """Return -1 or 1 by which is smaller; 0 if that cannot be said."""
    if max(one, other) < (1 + TIE) * min(one, other):
        return 0
    return -1 if one < other else 1


def by_scenario(measured: Iterable[Agreement]) -> dict[str, list[Agreement]]:
    """Return the policies of each scenario."""
    found: dict[str, list[Agreement]] = {}
    for each in measured:
        found.setdefault(each.scenario, []).append(each)
    return found


def table(measured: Sequence[Agreement]) -> Group:
    """Return the figures, the runs that do not count, and a line for each scenario."""
    times = Table(
        title="TTFT live and simulated, ms, and their ratio: middle of the valid rounds (range)",
        title_justify="left",
    )
    machine = Table(title="The live runs", title_justify="left")
    for shown in (times, machine):
        for name in ("scenario", "policy"):
            shown.add_column(name, no_wrap=True)
    for name in ("p50 live", "simulated", "p90 live", "simulated", "p90 live / simulated", "noise"):
        times.add_column(name, justify="right")
    for name in (
        "valid",
        "hit rate live, simulated",
        "TTFT outside the server p50, p90, ms",
        "steps late p99, ms",
        "sent late p99, ms",
        "load average",
        "CPU",
    ):
        machine.add_column(name, justify="right")
    for scenario, policies in by_scenario(measured).items():
        for each in policies:
            names = (scenario if each is policies[0] else "", each.policy)
            is_last = each is policies[-1]
            times.add_row(*names, *_times(each), end_section=is_last)
            machine.add_row(*names, *_machine(each), end_section=is_last)
    invalid = [
        Text(f"not valid: {each.scenario}, {each.policy}: {round_.live.why_invalid}", "yellow")
        for each in measured
        for round_ in each.rounds
        if round_.live.why_invalid
    ]
    verdicts = [verdict(name, policies) for name, policies in by_scenario(measured).items()]
    return Group(times, machine, *invalid, *verdicts)


def _times(each: Agreement) -> list[Text | str]:
    low, high = each.noise
    noise = f"{low:.2f} to {high:.2f}"
    if not each.valid:
        return [*["-"] * 5, noise]
    simulated = [run for round_ in each.valid for run in round_.simulated]
    ratio = f"{median(each.ratios):.2f} ({min(each.ratios):.2f} to {max(each.ratios):.2f})"
    return [
        f"{median(round_.live.ttft_p50_ms for round_ in each.valid):.0f}",
        f"{median(run.ttft_p50_ms for run in simulated):.0f}",
        f"{each.live_p90_ms:.0f}",
        f"{each.simulated_p90_ms:.0f}",
        Text(ratio, "bold green" if each.is_within_aim else "bold red"),
        noise,
    ]


def _machine(each: Agreement) -> list[str]:
    live = [round_.live for round_ in each.rounds]
    simulated = [run for round_ in each.rounds for run in round_.simulated]
    outside = [
        median(run.outside_p50_ms for run in live),
        median(run.outside_p90_ms for run in live),
    ]
    return [
        f"{len(each.valid)} of {len(each.rounds)}",
        ", ".join(f"{median(run.hit_rate for run in runs):.1%}" for runs in (live, simulated)),
        ", ".join(f"{value:.1f}" for value in outside),
        f"{median(run.lag_p99_ms for run in live):.0f}",
        f"{median(run.late_p99_ms for run in live):.0f}",
        f"{median(run.load_average for run in live):.1f}",
        ", ".join(
            f"{name} {median(run.cpu_shares[name] for run in live):.0%}"
            for name in live[0].cpu_shares
        ),
    ]


def verdict(scenario: str, policies: Sequence[Agreement]) -> Text:
    """Return a line that says whether order and p90 agree."""
    if not all(each.valid for each in policies):
        unknown = ", ".join(each.policy for each in policies if not each.valid)
        return Text(f"{scenario}: no verdict: no valid live run of {unknown}", "yellow")
    wrong = swapped(policies)
    order = "order of policies: the same"
    if wrong:
        order = f"order of policies: differs ({', '.join(f'{a} and {b}' for a, b in wrong)})"
    off = [each for each in policies if not each.is_within_aim]
    ratios = f"p90 TTFT within {AIM:.0%}: {len(policies) - len(off)} of {len(policies)} policies"
    for each in off:
        ratios += f"; {each.policy} is {median(each.ratios):.2f} times the simulated one"
        low, high = each.noise
        if low <= median(each.ratios) <= high:
            ratios += ", within the noise"
    return Text(f"{scenario}: {order}; {ratios}", "red" if wrong or off else "green")
