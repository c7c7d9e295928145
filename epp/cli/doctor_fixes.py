"""``epp doctor --fix``: print the changed file, and what is left to do."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import unified_diff

from epp.doctor import Diagnosis, Level
from epp.doctor.fixes import Fixed, mend


@dataclass(frozen=True, slots=True)
class FixableFile:
    """A file that the doctor can change."""

    name: str
    text: str
    is_config: bool
    """Whether it is the EndpointPickerConfig; otherwise Envoy's configuration."""
    diagnose: Callable[[str], Diagnosis]


def print_fixed(files: list[FixableFile], diagnosis: Diagnosis, *, as_diff: bool) -> bool:
    """Print the first file as changed, or the differences of all; return whether errors are left.

    What was mended and what is left goes to standard error.

    Raises:
        DoctorError: A changed file could not be read.
    """
    results = [(file, mend(file.text, file.diagnose, is_config=file.is_config)) for file in files]
    for place, (file, fixed) in enumerate(results):
        if as_diff:
            sys.stdout.writelines(_diff(file, fixed))
        elif not place:
            sys.stdout.write(fixed.text)
        elif fixed.mended:
            _tell(f"not printed: the changes of {file.name}; give --diff, or leave --file out")
    done = {row.finding.fix for _, fixed in results for row in fixed.mended}
    for file, fixed in results:
        for row in fixed.mended:
            _tell(f"mended   {file.name}  {row.check}  {row.finding.where}  {row.finding.mend}")
        for path, reason in fixed.refused.items():
            _tell(f"left     {file.name}  {path} cannot be changed mechanically: {reason}")
    left = [
        row
        for row in diagnosis.rows
        if row.finding.level is not Level.OK and row.finding.fix not in done - {None}
    ]
    width = max((len(row.check) for row in left), default=0)
    for row in left:
        _tell(row.line(width))
    return any(row.finding.level is Level.ERROR for row in left)


def _diff(file: FixableFile, fixed: Fixed) -> list[str]:
    before, after = (text.splitlines(keepends=True) for text in (file.text, fixed.text))
    lines = unified_diff(before, after, f"a/{file.name}", f"b/{file.name}")
    return [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    ]


def _tell(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - the command's output
