"""The directory of the workers' sockets is removed, even that of a supervisor that was killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from epp.workers.socket_folder import WorkerSocketFolder, in_use

KILLED = """
import os, signal
from epp.workers.socket_folder import WorkerSocketFolder
print(WorkerSocketFolder().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def left_by_a_killed_supervisor(parent: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env=os.environ | {"TMPDIR": str(parent)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    folder = Path(done.stdout.strip())
    (folder / "links-0").touch()
    return folder


def test_it_is_for_this_user_alone_and_removed_at_the_end(tmp_path: Path) -> None:
    folder = WorkerSocketFolder()
    assert folder.path.parent == tmp_path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "links-0").touch()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_that_of_a_killed_supervisor_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = left_by_a_killed_supervisor(tmp_path)
    assert left.exists()
    folder = WorkerSocketFolder()
    assert list(tmp_path.iterdir()) == [folder.path]
    folder.close()


def test_that_of_another_supervisor_stays(tmp_path: Path) -> None:
    first, second = WorkerSocketFolder(), WorkerSocketFolder()
    assert set(tmp_path.iterdir()) == {first.path, second.path}
    first.close()
    second.close()


def test_it_stays_while_a_worker_of_a_killed_supervisor_drains(tmp_path: Path) -> None:
    left = left_by_a_killed_supervisor(tmp_path)
    with in_use(left):
        WorkerSocketFolder().close()
        assert left.exists()
    WorkerSocketFolder().close()
    assert not left.exists()


def test_only_directories_of_this_user_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "epp-workers-file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "epp-workers-link").symlink_to(tmp_path / "elsewhere")
    left = left_by_a_killed_supervisor(tmp_path)
    with monkeypatch.context() as as_another:
        as_another.setattr(os, "geteuid", lambda: os.getuid() + 1)
        WorkerSocketFolder().close()
        assert left.exists()
    WorkerSocketFolder().close()
    assert {each.name for each in tmp_path.iterdir()} == {
        "epp-workers-file",
        "epp-workers-link",
        "elsewhere",
    }
