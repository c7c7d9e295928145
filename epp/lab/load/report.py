"""The report of a load run: its plan, the summary of its requests, and their records."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from epp.lab.load.plan import LoadPlan
from epp.lab.results.record import Record
from epp.lab.results.summary import Summary, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Summary):
    """Summary of a run of the load generator."""

    plan: LoadPlan
    """The plan of the run."""
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
    ) -> "Report":
        """Summarise `records`, which are in the order of completion."""
        summary = summarise(
            records,
            plan.slo,
            elapsed_seconds=elapsed_seconds,
            sent=sent,
            peak_in_flight=peak_in_flight,
            interrupted=interrupted,
            is_open_loop=plan.rate is not None,
        )
        values = {each.name: getattr(summary, each.name) for each in fields(Summary)}
        return cls(plan=plan, records=records, **values)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; the field names contain the units."""
        return {"plan": self.plan.to_dict(), **Summary.to_dict(self)}
