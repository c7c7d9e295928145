"""Common behaviour of the long-running commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from epp.cli.running import own_command

pytestmark = pytest.mark.integration

_FREED = """
import sys
from pathlib import Path
from epp.cli.running import keep_large_blocks_apart

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "apart":
    keep_large_blocks_apart()
pieces = [b"x" * (8 << 20)]
del pieces[0]  # the C library takes it for the size of what comes and goes
before = resident()
for _ in range(20):
    pieces += [b"x" * (8 << 20), b"y" * 100_000]
kept = pieces[1::2]
del pieces
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps what is free")
@pytest.mark.parametrize(
    ("how", "environment", "is_given_back"),
    [
        pytest.param("apart", {}, True, id="given back"),
        pytest.param("together", {}, False, id="kept by the C library"),
        pytest.param(
            "apart", {"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}, False, id="as the operator says"
        ),
    ],
)
def test_large_blocks_go_back_to_the_system(
    how: str, environment: dict[str, str], *, is_given_back: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FREED, how],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    left_bytes = int(done.stdout)
    assert (left_bytes < 16 << 20) == is_given_back, left_bytes


@pytest.mark.parametrize(
    ("called", "on_path", "command"),
    [
        pytest.param(".venv/bin/epp", "", "{here}/.venv/bin/epp", id="by its path"),
        pytest.param("my tools/epp", "", "'{here}/my tools/epp'", id="by a path with a space"),
        pytest.param(".venv/bin/epp", ".venv/bin", "epp", id="on the PATH"),
        pytest.param(".venv/bin/epp", "my tools", "{here}/.venv/bin/epp", id="another on the PATH"),
        pytest.param("epp/__main__.py", "", "{python} -m epp", id="as a module"),
    ],
)
def test_a_command_that_is_printed_works_from_any_folder(
    called: str, on_path: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (".venv/bin", "my tools"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "epp").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [called, "up"])
    monkeypatch.setenv("PATH", str(tmp_path / on_path) if on_path else "/nonexistent")
    assert own_command() == command.format(here=tmp_path, python=sys.executable)
