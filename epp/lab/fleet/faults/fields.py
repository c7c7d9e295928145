"""Reads the fields of one entry of a document; each error names the place of the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from math import isfinite
from typing import TypeGuard

from epp.lab.fleet.errors import FleetConfigError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")

_MISSING = object()


class Fields:
    """The fields of a mapping, each read once; `finish` refuses the rest."""

    def __init__(self, document: object, path: str) -> None:
        if not isinstance(document, Mapping):
            raise FleetConfigError(
                f"{path}: must be a mapping such as {{kind: crash, at: 30s, worker: 0}},"
                f" got {document!r}"
            )
        self.path = path
        """Place of the mapping in the document."""
        self._values = dict(document)
        self._read: list[str] = []

    def take(self, name: str, default: object = _MISSING) -> object:
        """Return a value unchanged; null counts as absent."""
        self._read.append(name)
        value = self._values.pop(name, None)
        if value is not None:
            return value
        if default is _MISSING:
            raise FleetConfigError(f"{self.path}.{name}: is missing")
        return default

    def optional_text(self, name: str) -> str | None:
        """Return a string that is not empty, or None if it is absent."""
        value = self.take(name, None)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.error(name, f"must be a text, got {value!r}")
        return value

    def choice(self, name: str, allowed: Collection[str], default: object = _MISSING) -> str:
        """Return a string, which must be one of `allowed`."""
        value = self.take(name, default)
        if not isinstance(value, str) or value not in allowed:
            near = difflib.get_close_matches(str(value), allowed, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise self.error(name, f"{value!r} is not one of {', '.join(allowed)}{hint}")
        return value

    def number(self, name: str, default: object = _MISSING, *, above: float = 0.0) -> float:
        """Return a finite number above `above`."""
        value = self.take(name, default)
        if not _is_number(value) or value <= above:
            raise self.error(name, f"must be a number above {above:g}, got {value!r}")
        return float(value)

    def share(self, name: str, default: object = _MISSING) -> float:
        """Return a number above 0, at most 1."""
        value = self.number(name, default)
        if value > 1:
            raise self.error(name, f"must be at most 1, got {value:g}")
        return value

    def status(self, name: str, default: object = _MISSING) -> int:
        """Return an HTTP status of an error."""
        value = self.take(name, default)
        if not isinstance(value, int) or not 400 <= value <= 599:  # noqa: PLR2004 -- RFC 9110 §15.5
            raise self.error(name, f"must be an HTTP status from 400 to 599, got {value!r}")
        return value

    def seconds(self, name: str, default: object = _MISSING) -> float:
        """Return a duration in seconds: a number, or text such as 500ms or 1m30s; at least 0."""
        value = self.take(name, default)
        try:
            return seconds_of(value)
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def positive_seconds(self, name: str, default: float) -> float:
        """Return a duration above 0 in seconds; the default may be infinite."""
        if self._values.get(name) is None:
            self.take(name, default)
            return default
        value = self.seconds(name)
        if not value:
            raise self.error(name, "must be above 0")
        return value

    def words(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self.take(name, default)
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise self.error(name, f"must be a list of names, got {value!r}")
        return tuple(value)

    def finish(self) -> None:
        """Raise `FleetConfigError` if a field has not been read."""
        for name in self._values:
            near = difflib.get_close_matches(str(name), self._read, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(self._read)}"
            raise self.error(str(name), f"is not a field of this kind; {hint}")

    def error(self, name: str, problem: str) -> FleetConfigError:
        """Return an error of a field."""
        return FleetConfigError(f"{self.path}.{name}: {problem}")


def seconds_of(value: object) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: It is neither a number of at least 0 nor text such as 500ms or 1m30s.
    """
    if _is_number(value) and value >= 0:
        return float(value)
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    raise ValueError(f"{value!r} is not a duration such as 500ms, 30s, 1m30s or 2.5")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
