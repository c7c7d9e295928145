"""Reads rows of trace files; each error names the file and the line."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from epp.inputs import why_unreadable
from epp.lab.traffic.errors import TrafficError

RowT = TypeVar("RowT")


class TraceLineError(TrafficError):
    """A line of a trace is invalid."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path}: line {line}: {problem}")


def json_lines(path: Path, kind: type[RowT]) -> Iterator[tuple[int, RowT]]:
    """Yield the number and the document of each line that is not empty.

    Raises:
        TrafficError: The file cannot be read, or a line is not a `kind`.
    """
    decode = msgspec.json.Decoder(kind).decode
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    yield number, decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise TraceLineError(path, number, str(error)) from None
    except OSError as error:
        raise unreadable(path, error) from None


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line number and the values of each row by lower-case column name.

    Raises:
        TrafficError: The file cannot be read, or is not CSV with a head.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            try:
                head = [name.strip().lower() for name in next(rows, [])]
                for row in rows:
                    if not row:
                        continue
                    if len(row) != len(head):
                        problem = f"{len(row)} values for {len(head)} columns"
                        raise TraceLineError(path, rows.line_num, problem)
                    yield rows.line_num, dict(zip(head, row, strict=True))
            except (csv.Error, UnicodeDecodeError) as error:
                raise TraceLineError(path, rows.line_num + 1, str(error)) from None
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> TrafficError:
    """Return the error for a file that cannot be read."""
    return TrafficError(f"{path}: {why_unreadable(error)}")


def whole_number(path: Path, line: int, row: Mapping[str, Any], column: str) -> int:
    """Return a count of tokens; 0 counts as 1, which is the least that a request can have.

    Raises:
        TraceLineError: It is missing or not a number of 0 or more.
    """
    value = row.get(column)
    try:
        number = int(value) if value is not None else -1
    except ValueError:
        number = -1
    if number < 0:
        problem = f"{column} is {value!r}; a whole number of 0 or more is wanted"
        raise TraceLineError(path, line, problem)
    return max(1, number)
