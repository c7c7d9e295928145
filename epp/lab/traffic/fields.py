"""Reads the fields of traffic descriptions; each error names the field and its valid values."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import msgspec

from epp.inputs import duration_seconds, why_unreadable
from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.lengths import EmpiricalLengths, Lengths, parse_lengths

StructT = TypeVar("StructT", bound=msgspec.Struct)

LengthsField = int | str | list[int] | dict[str, str]
"""A number, a text that `parse_lengths` reads, a list of observations, or ``{file: PATH}``."""
DurationField = float | str
"""Seconds, or a duration such as ``500ms``."""


def parse(document: object, kind: type[StructT], where: str) -> StructT:
    """Convert a mapping to a struct.

    Raises:
        TrafficError: A field is unknown, missing, or of the wrong type.
    """
    if not isinstance(document, Mapping):
        raise TrafficError(f"{where}: must be a mapping, not {type(document).__name__}")
    known = [each.encode_name for each in msgspec.structs.fields(kind)]
    for name in document:
        if name not in known:
            close = get_close_matches(str(name), known, 1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise TrafficError(f"{where}: unknown field {str(name)!r}; {advice}")
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise TrafficError(f"{where}{place.rstrip('`')}: {problem}") from None


def seconds(value: DurationField, where: str) -> float:
    """Return a duration in seconds.

    Raises:
        TrafficError: It is no duration, or below 0.
    """
    if isinstance(value, str):
        try:
            return duration_seconds(value)
        except ValueError as error:
            raise TrafficError(f"{where}: {error}") from None
    if not 0 <= value < float("inf"):
        raise TrafficError(f"{where}: {value} is not a number of seconds of 0 or more")
    return float(value)


def lengths(value: LengthsField, where: str, folder: Path) -> int | Lengths:
    """Return a number or a distribution of lengths.

    Args:
        value: The field.
        where: Its name, for errors.
        folder: Base folder of relative paths.

    Raises:
        TrafficError: It is invalid, or its file cannot be read.
    """
    if isinstance(value, dict) and set(value) != {"file"}:
        raise TrafficError(f"{where}: a mapping must have the field `file` and no other")
    if not isinstance(value, dict | list) and value in {0, "0"}:
        raise TrafficError(f"{where}: must be above 0")
    try:
        if isinstance(value, dict):
            return EmpiricalLengths(_numbers(folder / value["file"]))
        return EmpiricalLengths(value) if isinstance(value, list) else parse_lengths(str(value))
    except TrafficError as error:
        raise TrafficError(f"{where}: {error}") from None


def _numbers(path: Path) -> list[int]:
    try:
        words = path.read_text(encoding="utf-8").split()
    except OSError as error:
        raise TrafficError(f"{path}: {why_unreadable(error)}") from None
    except UnicodeDecodeError as error:
        raise TrafficError(f"{path}: {error}") from None
    for word in words:
        if not (word.isascii() and word.isdecimal()):
            raise TrafficError(f"{path}: {word[:40]!r} is not a whole number")
    return [int(word) for word in words]
