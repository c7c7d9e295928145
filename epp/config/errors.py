"""Errors of the configuration."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong with a configuration."""

    message: str
    """What is wrong and how to fix it, one sentence without a full stop."""
    path: str = ""
    """Path of the field, such as ``plugins[2].parameters.weight``; "" for the whole file."""
    line: int = 0
    """From 1; 0 if unknown."""
    column: int = 0
    """From 1; 0 if unknown."""

    def text(self, source: str) -> str:
        """Return one line, ``FILE:LINE:COLUMN: PATH: MESSAGE``; unknown parts are left out."""
        where = ":".join([source, *(str(n) for n in (self.line, self.column) if n)])
        return f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"


def in_order(problems: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    """Return problems in file order, without duplicates."""
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.line, problem.column))


class ConfigError(ValueError):
    """The configuration is invalid; the text says where and why.

    Attributes:
        problems: All problems, in file order; empty if the error is not about a file.
    """

    def __init__(self, text: str, problems: Sequence[ConfigProblem] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, source: str, problems: Sequence[ConfigProblem]) -> "ConfigError":
        """Return an error whose text has one line per problem."""
        return cls("\n".join(problem.text(source) for problem in problems), problems)
