"""The report of a load run: its plan, the summary of its requests, and their records."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from epp.lab.load.generator import Generator
from epp.lab.load.plan import LoadPlan
from epp.lab.results.record import Record
from epp.lab.results.summary import Summary, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Summary):
    """Summary of a run of the load generator."""

    plan: LoadPlan
    """The plan of the run."""
    generator: Generator
    """The generator's own influence on the results."""
    records: Sequence[Record]
    """All finished requests in the order of completion; not in `to_dict`."""

    @classmethod
    def from_records(
        cls,
        plan: LoadPlan,
        records: Sequence[Record],
        *,
        sent: int,
        elapsed_seconds: float,
        peak_in_flight: int,
        interrupted: bool = False,
        cpu_share: float = 0.0,
        waiting_share: float | None = None,
    ) -> "Report":
        """Summarise `records`, which are in the order of completion."""
        summary = summarise(
            records,
            plan.slo,
            elapsed_seconds=elapsed_seconds,
            sent=sent,
            peak_in_flight=peak_in_flight,
            interrupted=interrupted,
            is_open_loop=plan.clients is None,
        )
        generator = Generator.judge(summary, cpu_share, waiting_share)
        return cls(plan=plan, generator=generator, records=records, **_values(summary))

    def with_records(self, records: Sequence[Record]) -> "Report":
        """Return the report of the same run with other records of its requests."""
        summary = summarise(
            records,
            self.plan.slo,
            elapsed_seconds=self.elapsed_seconds,
            sent=self.sent,
            peak_in_flight=self.peak_in_flight,
            interrupted=self.interrupted,
            is_open_loop=self.plan.clients is None,
        )
        return replace(self, records=records, **_values(summary))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; the field names contain the units."""
        generator = asdict(self.generator)
        return {"plan": self.plan.to_dict(), "generator": generator, **Summary.to_dict(self)}


def _values(summary: Summary) -> dict[str, Any]:
    return {each.name: getattr(summary, each.name) for each in fields(Summary)}
