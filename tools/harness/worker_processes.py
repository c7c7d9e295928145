"""The processes of the workers of `epp serve --workers`."""

from contextlib import suppress
from pathlib import Path

import msgspec

from epp.workers.place import VARIABLE, Place


def worker_places(supervisor: int) -> dict[int, Place]:
    """Return the places of the running workers of a supervisor, by process; blocks."""
    found: dict[int, Place] = {}
    prefix = f"{VARIABLE}=".encode()
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        with suppress(OSError):  # the process has just ended
            for text in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                if text.startswith(prefix):
                    value = text.removeprefix(prefix)
                    found[int(child)] = msgspec.json.decode(value, type=Place)
    return found


def worker_pids(supervisor: int) -> dict[int, int]:
    """Return the processes of the running workers of a supervisor, by number; blocks."""
    return {place.index: pid for pid, place in worker_places(supervisor).items()}
