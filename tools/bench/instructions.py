"""Machine instructions of a request in process, counted by valgrind's callgrind.

A busy machine changes times, but not the number of instructions of a request: two runs of one
commit differ by about 1 %, and by up to 10 % with 100 chunks. The kernel's are not counted.
``tools.bench.counted_requests`` runs under valgrind, which counts between two calls of a library
that is compiled here, and writes a profile at the second one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from rich.table import Table

from epp.compiled import IS_COMPILED
from epp.lab.envoy import Mode
from tools import REPOSITORY
from tools.bench.gateways import Case, Reads
from tools.bench.tables import named, new_table

CASES: Final = (
    Case(Mode.FULL_DUPLEX),
    Case(Mode.FULL_DUPLEX, chunks=100),
    Case(Mode.LEAN),
    Case(Mode.ADAPTIVE),
    Case(Mode.ADAPTIVE, prompt_bytes=16_000),
    Case(Mode.ADAPTIVE, prompt_bytes=400_000),
)
MARK: Final = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(void) { CALLGRIND_STOP_INSTRUMENTATION; CALLGRIND_DUMP_STATS; }
void toggle(void) { CALLGRIND_TOGGLE_COLLECT; }
"""
"""Requests to valgrind; instructions that do nothing without it."""
_NOISE: Final = 0.01
_NOISE_OF_CHUNKS: Final = 0.1
FOLDER: Final = REPOSITORY / "build" / "bench" / "callgrind"
"""Profiles of the last run, for ``callgrind_annotate``."""
_TAIL_CHARACTERS: Final = 2000


class InstructionsError(Exception):
    """Instructions cannot be counted here; the message says what is missing or what failed."""


class Recorded(msgspec.Struct, frozen=True):
    """Input of the counted process: Envoy's messages for one request of a case."""

    case: Case
    reads: list[list[bytes]]


@dataclass(frozen=True, slots=True)
class Instructions:
    """One case, in thousands of instructions per request."""

    case: Case
    epp: float
    bare: float


def measure(recorded: Mapping[Case, Reads], folder: Path = FOLDER) -> list[Instructions]:
    """Count the instructions of each case, on the EPP and on the bare server.

    Args:
        recorded: What Envoy sends.
        folder: Where profiles are left, one for each case and server.

    Raises:
        InstructionsError: valgrind is missing, or the counted process failed.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise InstructionsError(
            "instructions were not counted: valgrind is missing (Debian: apt-get install valgrind)"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as scratch:
        given = Path(scratch, "recorded")
        given.write_bytes(
            msgspec.msgpack.encode(
                [Recorded(case, list(map(list, r))) for case, r in recorded.items()]
            )
        )
        mark = compiled_mark(Path(scratch))
        out = Path(scratch, "profile")
        profiles = _profiles(_command(valgrind, out, given, mark), out, 2 * len(recorded))
        counted = []
        for number, case in enumerate(recorded):
            thousands = []
            for server, path in zip(("epp", "bare"), profiles[2 * number :], strict=False):
                kept = folder / f"{named(case).replace(', ', '-').replace(' ', '-')}-{server}"
                shutil.move(path, kept)
                thousands.append(instructions_in(kept) / requests_of(case) / 1000)
            counted.append(Instructions(case, *thousands))
    return counted


def noise_of(case: Case) -> float:
    """Return the part by which two runs of one commit differ."""
    return _NOISE_OF_CHUNKS if case.chunks > 1 else _NOISE


def requests_of(case: Case) -> int:
    """Return the number of counted requests."""
    is_long = case.prompt_bytes > 100_000 or (case.mode is Mode.FULL_DUPLEX and case.chunks > 1)
    return 40 if is_long else 200


def compiled_mark(folder: Path) -> Path:
    """Compile :data:`MARK` into ``folder`` and return the library.

    Raises:
        InstructionsError: There is no C compiler, or valgrind's headers are missing.
    """
    library = folder / "mark.so"
    compiler = shutil.which("cc")
    if compiler is None:
        raise InstructionsError(
            "instructions were not counted: a C compiler is missing (Debian: apt-get install gcc)"
        )
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    done = subprocess.run(command, input=MARK, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstructionsError(
            "instructions were not counted: valgrind's headers are missing, or the C compiler"
            f" fails: {done.stderr[-_TAIL_CHARACTERS:]}"
        )
    return library


def _command(valgrind: str, out: Path, recorded: Path, mark: Path) -> list[str]:
    return [
        valgrind,
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={out}",
        *(sys.executable, "-m", "tools.bench.counted_requests", str(recorded), str(mark)),
    ]


def _profiles(command: Sequence[str], out: Path, count: int) -> list[Path]:
    """Run the counted process and return its profiles in their order."""
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        # Hashes of texts, and so the collisions in dicts, are the same in each run.
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    paths = [Path(f"{out}.{number}") for number in range(1, count + 1)]
    if done.returncode or not all(path.exists() for path in paths):
        raise InstructionsError(
            f"counting instructions failed with status {done.returncode}:"
            f" {(done.stdout + done.stderr)[-_TAIL_CHARACTERS:]}"
        )
    return paths


def instructions_in(profile: Path) -> int:
    """Return the instructions in a profile of callgrind.

    Raises:
        InstructionsError: The file is none, or was written with other events.
    """
    text = profile.read_text(errors="replace")
    fields = {
        name: value.split()
        for name, colon, value in (line.partition(":") for line in text.splitlines())
        if colon and name in {"events", "totals"}
    }
    if fields.get("events", [])[:1] != ["Ir"] or not fields.get("totals"):
        raise InstructionsError(f"{profile}: is no profile of callgrind with instructions (Ir)")
    return int(fields["totals"][0])


def table(counted: Sequence[Instructions]) -> Table:
    """Return a row for each case."""
    build = "compiled" if IS_COMPILED else "pure Python"
    shown = new_table(
        f"Thousands of machine instructions of a request in process, {build}",
        *("case", "EPP", "bare", "EPP / bare"),
    )
    for each in counted:
        shown.add_row(
            named(each.case),
            f"{each.epp:.1f}",
            f"{each.bare:.1f}",
            f"{each.epp / each.bare:.2f}",
        )
    return shown
