"""Run checks, and format the findings as lines or JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import msgspec

from epp.doctor.check import Check
from epp.doctor.findings import Finding, Level

S = TypeVar("S")

_MAX_NAMES: Final = 12
"""Maximum checks named in a line; without an Envoy, all of its checks would be listed."""


@dataclass(frozen=True, slots=True)
class DiagnosisRow:
    """A finding with the name of its check."""

    check: str
    finding: Finding

    def line(self, check_width: int) -> str:
        """Return the finding as one line: level, check, place, text."""
        level = self.finding.level.value
        place = f"{self.finding.where}  " if self.finding.where else ""
        return f"{level:<7}  {self.check:<{check_width}}  {place}{self.finding.text()}"


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A check that was skipped, because the data that it needs is missing."""

    check: str
    give: str
    """The options with which the check runs."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of checks."""

    rows: tuple[DiagnosisRow, ...]
    """Rows, errors first, then warnings; within a level in the order of the checks."""

    not_checked: tuple[NotChecked, ...]
    """Checks that were skipped."""

    @classmethod
    def joined(cls, *parts: Self) -> Self:
        """Combine several diagnoses into one."""
        rank = list(Level)
        rows = [row for part in parts for row in part.rows]
        rows.sort(key=lambda row: rank.index(row.finding.level))
        return cls(tuple(rows), tuple(each for part in parts for each in part.not_checked))

    def count(self, level: Level) -> int:
        """Return the number of rows of a level."""
        return sum(row.finding.level is level for row in self.rows)

    def lines(self) -> Iterator[str]:
        """Yield the human-readable report."""
        width = max((len(row.check) for row in self.rows), default=0)
        yield from (row.line(width) for row in self.rows)
        for give in dict.fromkeys(each.give for each in self.not_checked):
            names = [each.check for each in self.not_checked if each.give == give]
            shown = f"{len(names)} checks" if len(names) > _MAX_NAMES else ", ".join(names)
            yield f"not checked: {shown}; give {give}"
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
            "not_checked": [each.check for each in self.not_checked],
            "to_give": self._to_give(),
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()

    def _to_give(self) -> dict[str, list[str]]:
        """Return the skipped checks by the options with which they run."""
        given: dict[str, list[str]] = {}
        for each in self.not_checked:
            given.setdefault(each.give, []).append(each.check)
        return given


def examine(subject: S, checks: Iterable[Check[S]]) -> Diagnosis:
    """Run ``checks`` on ``subject``; checks whose data is missing are skipped."""
    rows: list[DiagnosisRow] = []
    not_checked: list[NotChecked] = []
    for check in checks:
        if not check.can_see(subject):
            not_checked.append(NotChecked(check.name, check.give))
            continue
        findings = tuple(dict.fromkeys(check.look(subject)))
        if not findings:
            findings = (Finding(Level.OK, "", check.fine),)
        rows.extend(DiagnosisRow(check.name, each) for each in findings)
    return Diagnosis.joined(Diagnosis(tuple(rows), tuple(not_checked)))


def skipped(checks: Iterable[Check[Any]], give: str) -> Diagnosis:
    """Return the diagnosis of a missing subject: all checks skipped."""
    return Diagnosis((), tuple(NotChecked(check.name, give) for check in checks))
