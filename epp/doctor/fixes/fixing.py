"""Fixes all findings of a file that can be fixed automatically."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from epp.doctor.diagnosis import Diagnosis, DiagnosisRow
from epp.doctor.findings import Fix, Level
from epp.doctor.fixes.fields import FixError, fixed_field

_MAX_ROUNDS: Final = 10
"""Maximum rounds, because a fix may cause another finding: full-duplex bodies need trailers."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A file after all changes."""

    text: str
    mended: tuple[DiagnosisRow, ...]
    left: tuple[DiagnosisRow, ...]
    """Errors and warnings on which an operator has to decide."""
    refused: dict[str, str]
    """Reasons why changes could not be made, by the path of the field."""


def mend(text: str, diagnose: Callable[[str], Diagnosis], *, is_config: bool) -> Fixed:
    """Return the file with all findings fixed that can be fixed automatically.

    Args:
        text: The file.
        diagnose: Examines a text.
        is_config: Whether the file is the EndpointPickerConfig; otherwise it is Envoy's
            configuration.

    Raises:
        DoctorError: ``diagnose`` has raised it.
    """
    mended: list[DiagnosisRow] = []
    refused: dict[str, str] = {}
    diagnosis = diagnose(text)
    for _ in range(_MAX_ROUNDS):
        touched: list[str] = []
        for row in diagnosis.rows:
            fix = row.finding.fix
            if fix is None or fix.is_of_config is not is_config or fix.path in refused:
                continue
            if any(_overlap(fix, path) for path in touched):
                continue
            try:
                changed = fixed_field(text, fix.path, fix.value)
            except FixError as error:
                refused[fix.path] = str(error)
                continue
            if changed != text:
                text = changed
                touched.append(fix.path)
                mended.append(row)
        if not touched:
            break
        diagnosis = diagnose(text)
    # What was found out by asking others stays as it was.
    done = {row.finding.fix for row in mended}
    left = tuple(
        row
        for row in diagnosis.rows
        if row.finding.level is not Level.OK
        and (not row.finding.fix or row.finding.fix not in done)
    )
    return Fixed(text, tuple(mended), left, refused)


def _overlap(fix: Fix, path: str) -> bool:
    """Whether one field contains the other, so that the second fix is based on outdated text."""
    return fix.path.startswith(path) or path.startswith(fix.path)
