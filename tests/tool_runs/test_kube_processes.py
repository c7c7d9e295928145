"""Processes of the API server's harness end with the process that started them."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import REPOSITORY
from tools.harness.kube.errors import ApiServerError
from tools.harness.kube.process_group import ProcessGroup
from tools.harness.kube.server import ApiServer

PARENT = """
import sys
from pathlib import Path
from tools.harness.kube.process_group import ProcessGroup

with ProcessGroup() as group:
    print(group.start(["sleep", "600"], Path(sys.argv[1])).pid, flush=True)
    sys.stdin.read()
"""


def wait_for_end(process: int) -> None:
    """Wait for the end of any process; of a child, it need not be waited for."""
    handle = os.pidfd_open(process)
    try:
        assert select.select([handle], [], [], 15)[0], f"process {process} is left"
    finally:
        os.close(handle)


def test_processes_end_with_the_group(tmp_path: Path) -> None:
    with ProcessGroup() as group:
        processes = [group.start(["sleep", "600"], tmp_path / "log") for _ in range(2)]
        assert all(process.poll() is None for process in processes)
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2


def test_processes_end_where_their_parent_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()
        wait_for_end(child)


@pytest.mark.parametrize("program", ["etcd", "kube-apiserver"])
def test_a_server_that_does_not_start_tells_why(tmp_path: Path, program: str) -> None:
    for name in ("etcd", "kube-apiserver"):
        path = tmp_path / name
        path.write_text("#!/bin/sh\nexec sleep 600\n")
        path.chmod(0o755)
    (tmp_path / program).write_text("#!/bin/sh\necho $0: bad flag >&2\nexit 3\n")
    server = ApiServer(tmp_path)
    with pytest.raises(ApiServerError, match=f"(?s){program} ended with 3:.*{program}: bad flag"):
        server.__enter__()
    assert not server.ca_file.parent.parent.exists()
