"""The file of one run's results: where and when it was made, and its cells.

A cell is one number that can be compared with that of another run. Cells are ratios wherever the
same run has a denominator: the bare server, the same measurement without one feature, or a fixed
piece of Python that takes longer on a slower machine.
"""

import hashlib
import json
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from epp.compiled import IS_COMPILED
from tools import REPOSITORY

FOLDER: Final = REPOSITORY / "build" / "bench"
COMPILED: Final = "compiled"
PURE: Final = "pure"
_SCHEMA: Final = 1
_REFERENCE_READINGS: Final = 40


class ResultFileError(Exception):
    """A file of results cannot be used; the message says which, why, and what to do."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One number, from one or several rounds."""

    values: list[float]
    """One for each round."""
    higher_is_better: bool = False
    noise: float | None = None
    """Part by which two runs of one commit differ; None for what is measured in time."""

    @property
    def value(self) -> float:
        """The middle of the rounds."""
        ordered = sorted(self.values)
        middle = len(ordered) // 2
        return (ordered[middle] + ordered[-1 - middle]) / 2


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a run."""

    cores: int
    processor: str
    python: str
    reference_us: float
    """CPU time of a fixed piece of Python, the least of many readings."""
    load: float
    """Load average of the last minute, when the run began."""


class ResultFile(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one run."""

    schema: int = _SCHEMA
    commit: str
    is_changed: bool
    """Whether the working tree differed from the commit."""
    is_compiled: bool = False
    """Whether it measured the compiled wheel; files of before this was recorded count as pure."""
    made_at: str
    """UTC, ISO 8601."""
    machine: Machine
    arguments: list[str]
    """Of the command line."""
    cells: dict[str, Cell]
    """By name: ``part: case: what is divided by what``."""
    results: Any = None
    """Everything that was measured, as the parts of the program return it."""

    @property
    def name(self) -> str:
        """Commit, build and time."""
        changed = "+" if self.is_changed else ""
        return f"{self.commit[:8]}{changed} ({self.build}) of {self.made_at[:16]}"

    @property
    def build(self) -> str:
        """``compiled`` or ``pure``."""
        return COMPILED if self.is_compiled else PURE


def this_machine() -> Machine:
    """Return the machine that this runs on; takes a second."""
    return Machine(
        cores=os.cpu_count() or 1,
        processor=_processor(),
        python=platform.python_version(),
        reference_us=reference_us(),
        load=os.getloadavg()[0],
    )


def reference_us() -> float:
    """Return the CPU time of a fixed piece of Python: dicts, bytes, hashes, JSON, arithmetic."""
    readings = []
    for _ in range(_REFERENCE_READINGS):
        began = time.thread_time()
        _work()
        readings.append(time.thread_time() - began)
    return min(readings) * 1e6


def _work() -> None:
    table: dict[str, int] = {}
    for number in range(2000):
        table[f"key-{number % 97}"] = table.get(f"key-{number % 89}", 0) + number
    text = json.dumps(table).encode()
    for _ in range(20):
        hashlib.sha256(text).digest()
        json.loads(text)


def write(cells: dict[str, Cell], results: object, machine: Machine, arguments: list[str]) -> Path:
    """Write a file of results for the commit that is checked out; return its path."""
    commit, is_changed = _commit()
    now = datetime.now(UTC)
    file = ResultFile(
        commit=commit,
        is_changed=is_changed,
        is_compiled=IS_COMPILED,
        made_at=now.isoformat(timespec="seconds"),
        machine=machine,
        arguments=arguments,
        cells=cells,
        results=results,
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{now:%Y%m%d-%H%M%S}-{commit[:8]}.json"
    encoded = msgspec.json.encode(file, enc_hook=str)
    path.write_bytes(msgspec.json.format(encoded))
    return path


def read(path: Path) -> ResultFile:
    """Read a file of results.

    Raises:
        ResultFileError: It cannot be read, or is of another kind or version.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=ResultFile)
    except OSError as error:
        raise ResultFileError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ResultFileError(f"{path}: is no file of results: {error}") from None
    if file.schema != _SCHEMA:
        raise ResultFileError(
            f"{path}: has schema {file.schema}, this program reads {_SCHEMA}:"
            " run `make bench` again"
        )
    return file


def _commit() -> tuple[str, bool]:
    def git(*arguments: str) -> str:
        command = ("git", *arguments)
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "HEAD") or "unknown", bool(git("status", "--porcelain"))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
