"""Runs an image as a container engine does: PID 1 of a PID namespace, and a read-only root.

The process is the image's user, without capabilities and without a way to get any. It can write to
/dev/shm alone, which engines mount with a read-only root, too; there is no writable /tmp, and what
is mounted is read-only. Containers of a `Pod` share a network namespace.
"""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

MOUNTED: Final = "/mnt"
"""Path of the mounted folder in a container."""

# sh is PID 1 until it becomes setpriv, which becomes the program.
_START: Final = """
set -e
root=$1 folder=$2; shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom; do
    : > "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777,nosuid,nodev,noexec,size=64m shm "$root/dev/shm"
mount --bind "$folder" "$root/mnt"
for path in "$root/dev" "$root/mnt" "$root"; do mount -o remount,bind,ro "$path"; done
cd "$root"
exec chroot . "$@"
"""


class Pod:
    """A network namespace with a loopback interface."""

    def __init__(self) -> None:
        # Not the PID: that of an earlier boot may have left its namespace behind.
        self.name = f"epp-image-{secrets.token_hex(4)}"

    def __enter__(self) -> "Pod":
        """Create the namespace."""
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        subprocess.run([*self.inside, "ip", "link", "set", "lo", "up"], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the namespace; processes in it keep it until they end."""
        subprocess.run(["ip", "netns", "delete", self.name], check=True)

    @property
    def inside(self) -> tuple[str, ...]:
        """Beginning of a command that runs in the namespace."""
        return ("ip", "netns", "exec", self.name)

    @contextmanager
    def running(self, *command: str | Path, output: Path) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a program of this machine in the namespace."""
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*self.inside, *command], stdout=file, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def output(self, *command: str | Path) -> str:
        """Return the output of a program of this machine in the namespace; it must succeed."""
        done = self._run(command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def succeeds(self, *command: str | Path) -> bool:
        """Return whether a program of this machine succeeds in the namespace."""
        return self._run(command).returncode == 0

    def _run(self, command: Sequence[str | Path]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self.inside, *command], capture_output=True, text=True, check=False, timeout=30
        )


class Container:
    """A running image.

    Attributes:
        pid: The process of the entrypoint, as this machine sees it.
        output: The file with its standard output and error.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", settings: Mapping[str, Any]) -> None:
        self._process = process
        self._settings = settings
        (self.pid,) = _children(process)

    def status(self) -> Mapping[str, str]:
        """Return the fields of /proc/PID/status."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        fields = (line.partition(":") for line in lines)
        return {name: " ".join(value.split()) for name, _, value in fields}

    def processes(self) -> Mapping[int, str]:
        """Return the state letter of each process in the container, by its PID there."""
        listed = self.execute("sh", "-c", "cat /proc/[0-9]*/stat").stdout.splitlines()
        fields = ((line.partition(" ")[0], line.rpartition(")")[2].split()[0]) for line in listed)
        return {int(number): state for number, state in fields}

    def execute(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the image in the container, as its user, like `docker exec`."""
        return subprocess.run(
            [
                *(f"nsenter --target={self.pid} --mount --pid --net --root --wd".split()),
                *program(self._settings, command),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the entrypoint."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end of the container and return its exit status."""
        return self._process.wait(60)


def program(settings: Mapping[str, Any], command: Sequence[str]) -> list[str]:
    """Return the command that gives up root, becomes the image's user and runs a program."""
    user, _, group = settings["User"].partition(":")
    return [
        *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"),
        *("--bounding-set=-all", "--inh-caps=-all", "env", "-i", *settings["Env"], *command),
    ]


@contextmanager
def start(
    pod: Pod,
    root: Path,
    settings: Mapping[str, Any],
    arguments: Sequence[str],
    *,
    mounted: Path,
    output: Path,
) -> Iterator[Container]:
    """Run the entrypoint of an image, and kill the container at the end.

    Args:
        pod: The network to join.
        root: The file system of the image.
        settings: Its settings, from `Buildah.settings`.
        arguments: The arguments of the container.
        mounted: The folder to mount at `MOUNTED`.
        output: The file that gets its standard output and error.
    """
    namespaces = ("unshare", "--mount", "--pid", "--fork")
    entrypoint = program(settings, [*settings["Entrypoint"], *arguments])
    command: tuple[str | Path, ...] = (
        *namespaces,
        "sh",
        "-c",
        _START,
        "sh",
        root,
        mounted,
        *entrypoint,
    )
    with pod.running(*command, output=output) as process:
        container = Container(process, settings)
        try:
            yield container
        finally:
            # Not unshare's --kill-child: it is lost when the child becomes another user.
            with contextlib.suppress(ProcessLookupError):
                container.kill(signal.SIGKILL)
            process.wait()


def _children(process: "subprocess.Popen[bytes]") -> list[int]:
    """Return the children of a process, once it has one or has ended."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        if found := path.read_text().split():
            return [int(each) for each in found]
    raise ChildProcessError("unshare has ended")
