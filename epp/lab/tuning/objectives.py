"""The objective of a search: a number of a run, and whether a higher one is better."""

from collections.abc import Callable
from dataclasses import dataclass

from epp.lab.results import Distribution
from epp.lab.scenarios import LabScenario
from epp.lab.simulation import FinishedRun
from epp.lab.tuning.errors import TuningError


@dataclass(frozen=True, slots=True)
class TuningObjective:
    """A number to make as large or as small as possible."""

    name: str
    """Name on the command line."""
    label: str
    """Name in sentences."""
    unit: str
    value: Callable[[FinishedRun, LabScenario], float | None]
    """The number of a run; None if it has none."""
    higher_is_better: bool

    def check(self, scenario: LabScenario) -> None:
        """Check that the scenario has what the number needs.

        Raises:
            TuningError: It has no limits for the goodput.
        """
        if self is GOODPUT and not scenario.slo.is_set:
            raise TuningError(
                f"scenario {scenario.name}: goodput counts the requests that meet `slo`, which the"
                " scenario does not have; add `slo: {ttft: 1s}` to it, or use --objective p90-ttft"
            )


def _goodput(run: FinishedRun, scenario: LabScenario) -> float | None:
    del scenario
    return None if run.summary.goodput is None else run.summary.goodput.per_second


def _p90_ttft(run: FinishedRun, scenario: LabScenario) -> float | None:
    """Return the percentile of all requests: leaving out failed ones would reward failing."""
    counted = (each for each in run.records if each.started_at >= scenario.warm_up_seconds)
    times = [
        scenario.timeout_seconds
        if each.error is not None or each.ttft_seconds is None
        else each.ttft_seconds
        for each in counted
        if not each.left_early
    ]
    distribution = Distribution.of_seconds(times)
    return None if distribution is None else distribution.p90


GOODPUT = TuningObjective("goodput", "goodput", "requests/s", _goodput, higher_is_better=True)
P90_TTFT = TuningObjective("p90-ttft", "TTFT p90", "ms", _p90_ttft, higher_is_better=False)
OBJECTIVES = {each.name: each for each in (GOODPUT, P90_TTFT)}
"""Objectives by name."""
