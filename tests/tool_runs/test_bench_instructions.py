"""Instructions of a request: profiles are read; a missing valgrind is not a failure."""

import io
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from epp.lab.envoy import Mode
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools import REPOSITORY
from tools.bench import instructions, main
from tools.bench.gateways import Case, Reads
from tools.bench.instructions import Instructions, InstructionsError, Recorded
from tools.bench.result_cells import cells_of
from tools.bench.through_envoy import Settings
from tools.harness.ext_proc import ADAPTIVE, http_headers

CASE, CHUNKS = Case(Mode.ADAPTIVE), Case(Mode.FULL_DUPLEX, chunks=100)
PROFILE = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
desc: Trigger: Client Request
events: {events}
summary: 2000 1
fn=(12) long_hash
16 4
totals: {instructions} 1
"""

COMPILER = """\
import sys
assert "#include <valgrind/callgrind.h>" in sys.stdin.read()
open(sys.argv[-1], "w").write("compiled")
"""
VALGRIND = f"""\
import os, sys
options = dict(each[2:].split("=", 1) for each in sys.argv[1:] if each.startswith("--"))
assert options["tool"] == "callgrind", options
assert options["instr-atstart"] == "no", options
assert open(sys.argv[-1]).read() == "compiled", sys.argv
assert os.environ["PYTHONHASHSEED"] == "0"
for number in range(1, 5):
    profile = {PROFILE!r}.format(events="Ir Ge", instructions=number * 8_000_000)
    open(options["callgrind-out-file"] + f".{{number}}", "w").write(profile)
"""
"""Runs nothing, and writes four profiles."""


def write_profile(folder: Path, *, events: str = "Ir", instructions: object = 1234) -> Path:
    path = folder / "profile"
    path.write_text(PROFILE.format(events=events, instructions=instructions))
    return path


def test_the_total_of_a_profile_is_its_first_event(tmp_path: Path) -> None:
    assert instructions.instructions_in(write_profile(tmp_path, events="Ir I1mr")) == 1234


@pytest.mark.parametrize(
    "text", ["", "hello: world\n", PROFILE.format(events="Dr", instructions=1)]
)
def test_a_file_that_counts_no_instructions_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile"
    path.write_text(text)
    with pytest.raises(InstructionsError, match="is no profile of callgrind with instructions"):
        instructions.instructions_in(path)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Let these programs in Python be the only ones in the search path."""
    monkeypatch.setenv("PATH", str(folder))
    for name, text in programs.items():
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{text}")
        program.chmod(0o755)


def test_each_case_has_a_profile_of_the_epp_and_one_of_the_bare_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, valgrind=VALGRIND, cc=COMPILER)
    counted = instructions.measure({CASE: [], CHUNKS: []}, tmp_path / "kept")
    # 8 and 16 million of 200 requests, then 24 and 32 million of 40.
    assert counted == [Instructions(CASE, 40.0, 80.0), Instructions(CHUNKS, 600.0, 800.0)]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "adaptive-bare",
        "adaptive-epp",
        "full-duplex-100-chunks-bare",
        "full-duplex-100-chunks-epp",
    ]


def test_a_counted_process_that_fails_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = "raise SystemExit('no room for the translation cache')"
    install(tmp_path, monkeypatch, valgrind=failing, cc=COMPILER)
    with pytest.raises(InstructionsError, match=r"status 1: no room for the translation cache"):
        instructions.measure({CASE: []}, tmp_path / "kept")


@pytest.mark.parametrize(
    ("programs", "missing"),
    [
        pytest.param({}, "valgrind is missing", id="no valgrind"),
        pytest.param({"valgrind": VALGRIND}, "a C compiler is missing", id="no compiler"),
        pytest.param(
            {"valgrind": VALGRIND, "cc": "raise SystemExit('no such file: callgrind.h')"},
            r"valgrind's headers are missing, .*: no such file: callgrind\.h",
            id="no headers",
        ),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, str], missing: str
) -> None:
    install(tmp_path, monkeypatch, **programs)
    with pytest.raises(InstructionsError, match=missing):
        instructions.measure({CASE: []}, tmp_path / "kept")


class Prepared(main.Run):
    """A run that has recorded already."""

    async def reads(self, case: Case) -> Reads:
        return []


async def test_without_valgrind_the_run_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = io.StringIO()
    settings = Settings(seconds=1.0, rounds=1, pause_ms=0.0)
    run = Prepared(
        Console(file=shown, width=160), settings, settings, 1, True, servers=(), budget_cases=()
    )
    await main.instruction_counts(run)
    assert "valgrind is missing (Debian: apt-get install valgrind)" in shown.getvalue()
    assert run.results == {}


def test_cells_have_the_noise_of_counts() -> None:
    counted = [Instructions(CASE, 600.0, 150.0), Instructions(CHUNKS, 6.0, 4.0)]
    cells = cells_of({"instructions": counted}, reference_us=1.0)
    assert {name: (cell.value, cell.noise) for name, cell in cells.items()} == {
        "instructions: adaptive: EPP / bare": (4.0, 0.01),
        "instructions: adaptive: EPP, thousands": (600.0, 0.01),
        "instructions: adaptive: bare, thousands": (150.0, 0.01),
        "instructions: full-duplex, 100 chunks: EPP / bare": (1.5, 0.1),
        "instructions: full-duplex, 100 chunks: EPP, thousands": (6.0, 0.1),
        "instructions: full-duplex, 100 chunks: bare, thousands": (4.0, 0.1),
    }


COUNTED = """\
import sys
from pathlib import Path
from types import SimpleNamespace
import msgspec
from tools.bench import counted_requests
shown = sys.stdout  # the log takes the place of it
interrupted = []
mark = SimpleNamespace(
    begin=lambda: interrupted.clear(),
    end=lambda: print("counted, interrupted", len(interrupted) / 2, "times", file=shown),
    toggle=lambda: interrupted.append(True),
)
recorded = msgspec.msgpack.decode(
    Path(sys.argv[1]).read_bytes(), type=list[counted_requests.Recorded]
)
counted_requests.main(recorded, mark)
"""


def counted_process(folder: Path, *messages: pb.ProcessingRequest) -> tuple[int, str, str]:
    """Run it for a case with these messages, without valgrind; return status and outputs."""
    given = folder / "recorded"
    reads = [[each.SerializeToString()] for each in messages]
    given.write_bytes(msgspec.msgpack.encode([Recorded(CASE, reads)]))
    command = [sys.executable, "-c", COUNTED, str(given)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("prompt_bytes", "interruptions"),
    [pytest.param(500, 0.0, id="a short body"), pytest.param(17_000, 200.0, id="one with a turn")],
)
def test_the_counted_process_handles_the_requests_of_each_case(
    tmp_path: Path, prompt_bytes: int, interruptions: float
) -> None:
    asked = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r"}
    config = pb.ProtocolConfiguration(request_body_mode=ADAPTIVE[0], response_body_mode=ADAPTIVE[1])
    body = b'{"model":"bench","prompt":"000000000000%b"}' % (b"x" * prompt_bytes)
    got = counted_process(
        tmp_path,
        pb.ProcessingRequest(request_headers=http_headers(asked, False), protocol_config=config),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)),
        pb.ProcessingRequest(response_headers=http_headers({":status": "200"}, False)),
    )
    # Once for the EPP, once for the bare server.
    line = f"counted, interrupted {interruptions} times\n"
    assert got == (0, 2 * line, "")


def test_the_counted_process_refuses_requests_that_are_not_answered(tmp_path: Path) -> None:
    body = pb.HttpBody(body=b'"prompt":"000000000000"')
    status, _, errors = counted_process(tmp_path, pb.ProcessingRequest(response_body=body))
    assert status == 1
    assert "what was measured is not the whole path" in errors
