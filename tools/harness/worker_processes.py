"""The processes of the workers of `epp serve --workers`."""

import json
from contextlib import suppress
from pathlib import Path

from epp.workers.place import VARIABLE


def worker_pids(supervisor: int) -> dict[int, int]:
    """Return the processes of the running workers of a supervisor, by number; blocks."""
    found: dict[int, int] = {}
    prefix = f"{VARIABLE}=".encode()
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        with suppress(OSError):  # the process has just ended
            for text in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                if text.startswith(prefix):
                    found[json.loads(text.removeprefix(prefix))["index"]] = int(child)
    return found
