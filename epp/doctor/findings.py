"""The findings of checks."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How much a finding matters; an error fails the command."""

    ERROR = "error"
    """Requests fail or go astray under ordinary traffic."""

    WARNING = "warning"
    """Requests fail or go astray in some cases, or the EPP works with less than it could."""

    OK = "ok"
    """Nothing to mend; the text may say what a configuration cannot show."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One trap at one place."""

    level: Level

    where: str
    """Path in the configuration of the field that is set, or is to be set."""

    found: str
    """What stands there."""

    why: str = ""
    """What comes of it."""

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
