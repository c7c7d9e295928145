"""Time from the start of ``epp serve`` until its ports are open.

``.venv/bin/python -m tools.bench --only start``
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from tools.bench.tables import new_table

AIM_SECONDS = 1.0
"""Most that it may take, on an idle machine."""
_FLOW_CONTROL = (
    "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, featureGates: [flowControl]}"
)
CASES: dict[str, tuple[str, ...]] = {
    "TLS, self-signed": (),
    "plaintext": ("--secure-serving=false",),
    "flow control": ("--config-text", _FLOW_CONTROL),
}
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Start:
    """One start."""

    wall_seconds: float
    cpu_seconds: float
    """CPU time until the ports are open: the wall time on an idle machine."""


def measure(rounds: int) -> dict[str, list[Start]]:
    """Start each case ``rounds`` times, in turn."""
    _start(())  # writes the bytecode, if there is none
    measured: dict[str, list[Start]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, options in CASES.items():
            measured[name].append(_start(options))
    return measured


def table(measured: dict[str, list[Start]]) -> Table:
    """Times by case."""
    made = new_table(
        f"Start until the ports are open, aim {AIM_SECONDS:.1f} s", "case", "wall s", "CPU s"
    )
    for name, starts in measured.items():
        made.add_row(
            name,
            f"{median(each.wall_seconds for each in starts):.2f}",
            f"{median(each.cpu_seconds for each in starts):.2f}",
        )
    return made


def _start(options: Sequence[str]) -> Start:
    ports = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        began = time.monotonic()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "epp", "serve", "--host", "127.0.0.1", *ports),
                *("--endpoint", "127.0.0.1:1", "--ready-file", str(ready), *options),
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"epp serve ended with {process.returncode}")
                time.sleep(_POLL_SECONDS)
            return Start(time.monotonic() - began, _cpu_seconds(process.pid))
        finally:
            process.kill()
            process.wait()


def _cpu_seconds(pid: int) -> float:
    """Return what a process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
