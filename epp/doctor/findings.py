"""The findings of checks."""

import json
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """Severity of a finding; an error fails the command."""

    ERROR = "error"
    """Requests fail or are misrouted under ordinary traffic."""

    WARNING = "warning"
    """Requests fail or are misrouted in some cases, or the EPP lacks data that it could use."""

    OK = "ok"
    """Nothing to fix; the text may name a requirement that the check cannot verify."""


@dataclass(frozen=True, slots=True)
class Fix:
    """The change of a file that fixes a finding."""

    path: str
    """Path of the field, as in `Finding.where`."""

    value: str | None
    """New value of the field as JSON; None to remove the field."""

    is_of_config: bool = False
    """Whether the file is the EndpointPickerConfig, not Envoy's configuration."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One misconfiguration."""

    level: Level

    where: str
    """Path of the field that is set or should be set."""

    found: str
    """Current value of the field."""

    why: str = ""
    """The consequence of the misconfiguration."""

    mend: str = ""
    """The fix: the field to set, and its value."""

    fix: Fix | None = None
    """The automatic fix; None if an operator has to decide."""

    def text(self) -> str:
        """Return the finding as one line, without the path."""
        return ". ".join(each for each in (self.found, self.why, self.mend) if each)


def error(where: str, found: str, why: str, mend: str, fix: Fix | None = None) -> Finding:
    """Return a finding that fails the command."""
    return Finding(Level.ERROR, where, found, why, mend, fix)


def warning(where: str, found: str, why: str, mend: str, fix: Fix | None = None) -> Finding:
    """Return a finding that does not fail the command."""
    return Finding(Level.WARNING, where, found, why, mend, fix)


def note(where: str, found: str) -> Finding:
    """Return a remark about a correct configuration."""
    return Finding(Level.OK, where, found)


def set_to(path: str, value: object, *, is_of_config: bool = False) -> Fix:
    """Return the fix that sets a field."""
    return Fix(path, json.dumps(value), is_of_config)


def taken_out(path: str) -> Fix:
    """Return the fix that removes a field of Envoy's configuration."""
    return Fix(path, None)
