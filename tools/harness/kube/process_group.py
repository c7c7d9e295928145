"""Processes that end with this one, however it ends."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


class ProcessGroup:
    """A context manager that kills the processes it has started.

    A shell leads the process group and reads from a pipe. When this process dies, even by SIGKILL
    or ``os._exit``, the pipe is closed and the shell kills the group. (The kernel's parent-death
    signal does not help: it is sent when the *thread* that started the process ends.)
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._leader = subprocess.Popen(
            ["sh", "-c", "read -r _; kill -KILL 0"], stdin=subprocess.PIPE, process_group=0
        )
        self._processes.append(self._leader)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The leader has not been waited for, so its id has not been reused.
        os.killpg(self._leader.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        if self._leader.stdin is not None:
            self._leader.stdin.close()

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program; its output is appended to ``log``."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                process_group=self._leader.pid,
            )
        self._processes.append(process)
        return process
