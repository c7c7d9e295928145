"""The findings of checks."""

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
class Finding:
    """One misconfiguration."""

    level: Level

    where: str
    """Path of the field that is set or should be set."""

    found: str
    """Its current value."""

    why: str = ""
    """The consequence."""

    mend: str = ""
    """The field to set, and its value."""

    def text(self) -> str:
        """Return it as one line, without the path."""
        return ". ".join(each for each in (self.found, self.why, self.mend) if each)


def error(where: str, found: str, why: str, mend: str) -> Finding:
    """Return a finding that fails the command."""
    return Finding(Level.ERROR, where, found, why, mend)


def warning(where: str, found: str, why: str, mend: str) -> Finding:
    """Return a finding that does not fail the command."""
    return Finding(Level.WARNING, where, found, why, mend)


def note(where: str, found: str) -> Finding:
    """Return a remark about a correct configuration."""
    return Finding(Level.OK, where, found)
