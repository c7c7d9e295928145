"""``epp serve`` reloads its configuration: SIGHUP, followed files, and refused files."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from epp.config import DEFAULT_CONFIG

pytestmark = pytest.mark.integration

ARGS = (
    *("serve", "--secure-serving=false", "--host", "127.0.0.1", "--endpoint", "127.0.0.1:1"),
    *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
)


@contextmanager
def serving(folder: Path, *args: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "epp", *ARGS, *args], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
        process.terminate()
        assert process.wait(40) == 0
    finally:
        process.kill()
        process.wait()


def logged(folder: Path, event: str, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Wait for a log line; return its facts."""
    deadline = time.monotonic() + 40
    while True:
        text = (folder / "output").read_text()
        for line in text.splitlines():
            if f'"event":"{event}"' in line:
                facts: dict[str, Any] = json.loads(line)
                return facts
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.01)


def test_sighup_reads_the_file_again_and_a_change_is_followed_without_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(DEFAULT_CONFIG)
    with serving(tmp_path, "--config-file", str(file)) as process:
        logged(tmp_path, "endpoint picker started", process)
        process.send_signal(signal.SIGHUP)
        assert logged(tmp_path, "configuration unchanged", process)["path"] == str(file)
        file.write_text(DEFAULT_CONFIG.replace("queue-scorer", "queue-scorrer"))
        refused = logged(tmp_path, "configuration refused, the one in use stays", process)
        assert refused["problems"][0].startswith(f"{file}:4:9: plugins[0].type: unknown plugin")
        file.write_text(DEFAULT_CONFIG.replace("weight: 2", "weight: 4"))
        logged(tmp_path, "configuration reloaded", process)


def test_sighup_without_a_file_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        logged(tmp_path, "endpoint picker started", process)
        process.send_signal(signal.SIGHUP)
        logged(tmp_path, "nothing to reload, the configuration does not come from a file", process)


def test_every_problem_of_a_configuration_is_reported_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = DEFAULT_CONFIG.replace("type: queue-scorer", "type: queue-scorrer")
    file.write_text(text.replace("weight: 3", "weight: .inf") + "other: 1\n")
    command = [sys.executable, "-m", "epp", *ARGS, "--config-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)
    assert done.returncode == 1
    assert "plugins[0].type: unknown plugin type `queue-scorrer`" in done.stderr
    assert "schedulingProfiles[0].plugins[2].weight" in done.stderr
    assert "unknown field `other`" in done.stderr


def test_objects_are_followed_and_a_faulty_folder_is_named(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    objects.mkdir()
    (objects / "a.yaml").write_text("kind: InferenceObjective\n")
    command = [sys.executable, "-m", "epp", *ARGS, "--objects", str(objects)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)
    assert done.returncode == 1
    assert f"{objects}/a.yaml" in done.stderr
    assert "Traceback" not in done.stderr
