"""The scheduler is an independent library, for any requests and endpoints."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    NoEndpointsError,
    Picker,
    Scheduler,
    SchedulerProfile,
    ScoredEndpoint,
    Scorer,
    WeightedScorer,
)
from epp_plugins.profile_handlers.single_profile import Params, SingleProfileHandler


@dataclass(frozen=True)
class PrintJob:
    paper: str


@dataclass(frozen=True)
class Printer:
    name: str
    paper: tuple[str, ...]
    pages_queued: int


class FitsPaper(Filter):
    type = name = "fits-paper"

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        job, printers = cast("PrintJob", request), cast("Sequence[Printer]", endpoints)
        return cast("list[Endpoint]", [p for p in printers if job.paper in p.paper])


class ShortQueue(Scorer):
    type = name = "short-queue"

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return [1 - p.pages_queued / 100 for p in cast("Sequence[Printer]", endpoints)]


class Best(Picker):
    type = name = "best"

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        return [max(scored, key=lambda s: s.score)]


PRINTERS = (
    Printer("hall", ("A4",), 3),
    Printer("attic", ("A4", "A3"), 40),
    Printer("cellar", ("A3",), 90),
)


def print_on(paper: str) -> str:
    profile = SchedulerProfile(
        name="print", filters=[FitsPaper()], scorers=[WeightedScorer(ShortQueue())], picker=Best()
    )
    scheduler = Scheduler(SingleProfileHandler("single", Params()), {"print": profile})
    result = scheduler.schedule(
        cast("LLMRequest", PrintJob(paper)), cast("Sequence[Endpoint]", PRINTERS)
    )
    return result.endpoints[0].endpoint.name


def test_print_jobs_are_scheduled_on_printers() -> None:
    assert print_on("A4") == "hall"
    assert print_on("A3") == "attic"
    with pytest.raises(NoEndpointsError, match="fits-paper removed hall, attic, cellar"):
        print_on("A0")


@pytest.mark.parametrize("module", ["epp.scheduling", "epp.testing"])
def test_only_the_standard_library_is_imported(module: str) -> None:
    code = (
        f"import sys; before = set(sys.modules); import {module};"
        "third = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(third - set(sys.stdlib_module_names)));"
        "print(sorted({m.split('.')[1] for m in sys.modules if m.startswith('epp.')}))"
    )
    ran = subprocess.run([sys.executable, "-Ic", code], capture_output=True, text=True, check=True)
    third, packages = ran.stdout.splitlines()
    assert third == "['epp']"
    assert set(eval(packages)) <= {"scheduling", "testing"}
