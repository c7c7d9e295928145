"""The process of a worker: its command, its environment, and what it inherits."""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

from epp.workers.place import VARIABLE, Place

_OF_THE_SUPERVISOR: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables that a worker must not have: it must not speak to the service manager."""


def worker_command() -> list[str]:
    """Return the command of a worker: this program with the same arguments.

    It is a new interpreter. A fork would share the memory of the imported modules, but the
    supervisor has threads and event loops, whose locks a forked child may find held forever.
    """
    return [sys.executable, "-P", "-m", "epp", *sys.argv[1:]]


async def start_process(
    place: Place, command: Sequence[str]
) -> tuple[socket.socket, asyncio.subprocess.Process]:
    """Start a worker; return this end of its control stream, and the process.

    Args:
        place: Its place; the descriptor ``control`` is set here.
        command: Starts it.

    Raises:
        OSError: The system has no process, memory or descriptor left, or the program is gone.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        place = place.at(theirs.fileno())
        environment = {k: v for k, v in os.environ.items() if k not in _OF_THE_SUPERVISOR}
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environment | {VARIABLE: place.text()},
                pass_fds=(place.memory, place.control),
                # A terminal sends its signals to the supervisor only, which passes them on.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return ours, process
