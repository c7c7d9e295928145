"""The directory of the workers' sockets is removed, even that of a supervisor that was killed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from epp.replication.sockets import SocketCarrier
from epp.workers import WorkerError
from epp.workers.socket_folder import WorkerSocketFolder, in_use

KILLED = """
import os, signal
from epp.workers.socket_folder import WorkerSocketFolder
print(WorkerSocketFolder().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with TemporaryDirectory(prefix="w-") as folder:  # not tmp_path: it is too long for sockets
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


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


def test_it_is_for_this_user_alone_and_removed_at_the_end(parent: Path) -> None:
    folder = WorkerSocketFolder()
    assert folder.path.parent == parent
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "links-0").touch()
    folder.close()
    assert list(parent.iterdir()) == []


def test_that_of_a_killed_supervisor_is_removed_by_the_next_one(parent: Path) -> None:
    left = left_by_a_killed_supervisor(parent)
    assert left.exists()
    folder = WorkerSocketFolder()
    assert list(parent.iterdir()) == [folder.path]
    folder.close()


def test_that_of_another_supervisor_stays(parent: Path) -> None:
    first, second = WorkerSocketFolder(), WorkerSocketFolder()
    assert set(parent.iterdir()) == {first.path, second.path}
    first.close()
    second.close()


def test_it_stays_while_a_worker_of_a_killed_supervisor_drains(parent: Path) -> None:
    left = left_by_a_killed_supervisor(parent)
    with in_use(left):
        WorkerSocketFolder().close()
        assert left.exists()
    WorkerSocketFolder().close()
    assert not left.exists()


def test_only_directories_of_this_user_are_removed(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent / "epp-workers-file").touch()
    (parent / "elsewhere").mkdir()
    (parent / "epp-workers-link").symlink_to(parent / "elsewhere")
    left = left_by_a_killed_supervisor(parent)
    with monkeypatch.context() as as_another:
        as_another.setattr(os, "geteuid", lambda: os.getuid() + 1)
        WorkerSocketFolder().close()
        assert left.exists()
    WorkerSocketFolder().close()
    assert {each.name for each in parent.iterdir()} == {
        "epp-workers-file",
        "epp-workers-link",
        "elsewhere",
    }


@pytest.mark.parametrize("excess", [0, 1])
def test_a_path_that_is_too_long_for_sockets_is_refused(
    parent: Path, monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    room = 107 - len("/epp-workers-12345678/replicas/0123456789abcdef.sock")
    longer = parent / ("x" * (room + excess - len(str(parent)) - 1))
    longer.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(longer))
    if excess:
        with pytest.raises(WorkerError, match="set TMPDIR to a directory whose path has at most"):
            WorkerSocketFolder()
        return
    folder = WorkerSocketFolder()
    SocketCarrier(folder.path / "replicas", "a")  # which has the longest path, is content
    folder.close()


def test_without_a_directory_to_write_to_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc")  # nobody can make a directory there
    with pytest.raises(WorkerError, match="set TMPDIR to a directory that this user can write to"):
        WorkerSocketFolder()


def test_in_a_container_with_a_read_only_root_it_is_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", find_none)
    folder = WorkerSocketFolder()
    assert folder.path.parent == Path("/dev/shm")
    folder.close()
    assert not folder.path.exists()
