"""The checked list of `Difference` between the Deployments, and its table in docs/helm.md.

``deployment_differences.yaml`` groups the differences by subject, each with a reason.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import yaml

from tools.chart.deployments import ABSENT, Difference, go_deployments

LIST: Final = Path(__file__).with_name("deployment_differences.yaml")
ANY: Final = "*"

Text = Annotated[str, msgspec.Meta(min_length=1)]


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A difference that is intended."""

    path: Text
    go: Any = ABSENT
    ours: Any = ABSENT
    """Value in this chart; `ANY`, also as a part of it, matches every value that is present."""
    files: list[Text] = msgspec.field(name="in", default_factory=list)
    """Values files with which it occurs; empty for all."""

    def occurs_in(self, file: str) -> bool:
        """Whether it is expected with the values file."""
        return not self.files or file in self.files

    def matches(self, found: Difference) -> bool:
        """Whether it describes a difference that was found."""
        return (
            found.path == self.path
            and _matches(self.go, found.go)
            and _matches(self.ours, found.ours)
        )


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Differences with one reason; the texts are a row of the table."""

    about: Text
    go: Text
    here: Text
    reason: Text
    differences: Annotated[list[Known], msgspec.Meta(min_length=1)]


def known() -> list[Subject]:
    """Return the list.

    Raises:
        ValueError: It names a values file that is not compared.
    """
    subjects = msgspec.convert(yaml.safe_load(LIST.read_text()), list[Subject])
    named = {file for each in subjects for one in each.differences for file in one.files}
    if unknown := named - go_deployments().keys():
        raise ValueError(f"{LIST.name} names {sorted(unknown)}, of which there is no Deployment")
    return subjects


def faults(found: Sequence[Difference], file: str, subjects: Iterable[Subject]) -> list[str]:
    """Return a line for each difference that the list lacks or has in excess, for a values file."""
    expected = [
        each for subject in subjects for each in subject.differences if each.occurs_in(file)
    ]
    missing = [each for each in found if not any(one.matches(each) for one in expected)]
    excess = [each for each in expected if not any(each.matches(one) for one in found)]
    return [
        *(f"not listed: {each.path}: go {each.go!r}, ours {each.ours!r}" for each in missing),
        *(f"does not occur: {each.path}: go {each.go!r}, ours {each.ours!r}" for each in excess),
    ]


def table() -> str:
    """Return the subjects as a table in Markdown."""
    rows = (f"| {each.about} | {each.go} | {each.here} | {each.reason} |" for each in known())
    head = ("| field | Go EPP's chart | here | reason |", "|---|---|---|---|")
    return "\n".join([*head, *rows])


def _matches(expected: Any, found: Any) -> bool:
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(
            _matches(value, found[name]) for name, value in expected.items()
        )
    if expected == ANY:
        return found is not ABSENT
    return bool(expected == found) and (expected is ABSENT) == (found is ABSENT)
