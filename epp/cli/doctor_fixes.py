"""``epp doctor --fix``: prints the changed file and the remaining findings."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path

from epp.config import GraphBuilder, load_text
from epp.config.instances import close_all
from epp.doctor import (
    Deployment,
    Diagnosis,
    Gateway,
    Level,
    examine_deployment,
    examine_envoy,
    read_text,
)
from epp.doctor.fixes import Fixed, mend


@dataclass(frozen=True, slots=True)
class FixableFile:
    """A file that the doctor can change."""

    name: str
    text: str
    is_config: bool
    """Whether the file is the EndpointPickerConfig; otherwise it is Envoy's configuration."""
    diagnose: Callable[[str], Diagnosis]


def envoy_file(file: Path, ext_proc: str | None, queued_seconds: float) -> FixableFile:
    """Return a file with Envoy's configuration."""

    def diagnose(text: str) -> Diagnosis:
        source = read_text(text, str(file))
        return examine_envoy(Gateway(source, ext_proc, queued_seconds=queued_seconds))

    return FixableFile(str(file), file.read_text(encoding="utf-8"), False, diagnose)


def configuration(file: Path, deployment: Deployment, builder: GraphBuilder) -> FixableFile:
    """Return a file with an EndpointPickerConfig; the rest of the deployment is not read again."""

    def diagnose(text: str) -> Diagnosis:
        inspect = builder.registry.inspector(file.parent)
        graph = builder.build(load_text(text, str(file), file.parent, inspect=inspect))
        changed = replace(deployment, graph=graph)
        try:
            return examine_deployment(changed)
        finally:
            close_plugins(changed)

    return FixableFile(str(file), file.read_text(encoding="utf-8"), True, diagnose)


def close_plugins(deployment: Deployment) -> None:
    """Close the plugins of the deployment's graph."""
    if deployment.graph is not None:
        close_all(each.plugin for each in deployment.graph.instances.values())


def print_fixed(files: list[FixableFile], diagnosis: Diagnosis, *, as_diff: bool) -> bool:
    """Print the first file after the changes, or the diffs of all; return whether errors remain.

    The fixed and the remaining findings go to standard error.

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
            _report(f"not printed: the changes of {file.name}; give --diff, or leave --file out")
    done = {row.finding.fix for _, fixed in results for row in fixed.mended}
    for file, fixed in results:
        for row in fixed.mended:
            _report(f"mended   {file.name}  {row.check}  {row.finding.where}  {row.finding.mend}")
        for path, reason in fixed.refused.items():
            _report(f"left     {file.name}  {path} cannot be changed mechanically: {reason}")
    left = [
        row
        for row in diagnosis.rows
        if row.finding.level is not Level.OK and row.finding.fix not in done - {None}
    ]
    width = max((len(row.check) for row in left), default=0)
    for row in left:
        _report(row.line(width))
    return any(row.finding.level is Level.ERROR for row in left)


def _diff(file: FixableFile, fixed: Fixed) -> list[str]:
    before, after = (text.splitlines(keepends=True) for text in (file.text, fixed.text))
    lines = unified_diff(before, after, f"a/{file.name}", f"b/{file.name}")
    return [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    ]


def _report(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - the command's output
