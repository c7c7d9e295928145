"""Run all checks on one Envoy, and format the findings as lines or JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from epp.doctor.checks import CHECKS, Check
from epp.doctor.findings import Finding, Level
from epp.doctor.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Row:
    """A finding with the name of its check."""

    check: str
    finding: Finding

    def line(self, check_width: int) -> str:
        """Return it as one line: level, check, place, text."""
        level = self.finding.level.value
        place = f"{self.finding.where}  " if self.finding.where else ""
        return f"{level:<7}  {self.check:<{check_width}}  {place}{self.finding.text()}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of all checks."""

    rows: tuple[Row, ...]
    """Errors first, then warnings; within a level in the order of the checks."""

    not_checked: tuple[str, ...]
    """Checks that were skipped because the source lacks the data they need."""

    def count(self, level: Level) -> int:
        """Return the number of rows of a level."""
        return sum(row.finding.level is level for row in self.rows)

    def lines(self) -> Iterator[str]:
        """Yield the human-readable report."""
        width = max((len(row.check) for row in self.rows), default=0)
        yield from (row.line(width) for row in self.rows)
        if self.not_checked:
            yield f"not checked, for lack of data in this source: {', '.join(self.not_checked)}"
        yield f"{self._counted(Level.ERROR)}, {self._counted(Level.WARNING)}"

    def _counted(self, level: Level) -> str:
        count = self.count(level)
        return f"{count} {level.value}" if count == 1 else f"{count} {level.value}s"

    def json(self) -> str:
        """Return the report as JSON."""
        findings = [
            {
                "level": row.finding.level.value,
                "check": row.check,
                "where": row.finding.where,
                "found": row.finding.found,
                "why": row.finding.why,
                "mend": row.finding.mend,
            }
            for row in self.rows
        ]
        document = {
            "errors": self.count(Level.ERROR),
            "warnings": self.count(Level.WARNING),
            "findings": findings,
            "not_checked": self.not_checked,
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def examine(gateway: Gateway, checks: Iterable[Check] = CHECKS) -> Diagnosis:
    """Run the checks."""
    rows: list[Row] = []
    not_checked: list[str] = []
    for check in checks:
        if not check.can_see(gateway):
            not_checked.append(check.name)
            continue
        findings = tuple(dict.fromkeys(check.look(gateway)))
        if not findings:
            findings = (Finding(Level.OK, "", check.fine),)
        rows.extend(Row(check.name, each) for each in findings)
    rank = list(Level)
    rows.sort(key=lambda row: rank.index(row.finding.level))
    return Diagnosis(tuple(rows), tuple(not_checked))
