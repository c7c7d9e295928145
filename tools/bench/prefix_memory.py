"""Memory of the prefix index, counted and resident; each case runs in its own process.

``.venv/bin/python -m tools.bench --only memory``
"""

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.table import Table

from epp_plugins.data_producers.prefix_index import DEFAULT_MAX_BYTES, PrefixIndex
from tools import REPOSITORY

ENDPOINTS = 4
_CAPACITY = 10**9
"""Blocks per endpoint: only the budget limits the index."""


class Case(msgspec.Struct, frozen=True):
    """Distinct prompts of random blocks, entered one after another."""

    blocks: int
    """Blocks of each prompt."""
    prompts: int
    shared: int = 0
    """Number of leading blocks that a hundredth of the prompts share."""
    endpoints: int = ENDPOINTS
    holders: int = 1
    """Endpoints that each prompt is sent to."""
    max_bytes: int = DEFAULT_MAX_BYTES


CASES = (
    Case(blocks=4, prompts=1_000_000),
    Case(blocks=256, prompts=200_000),
    Case(blocks=12, shared=8, prompts=400_000),
    Case(blocks=12, shared=8, prompts=200_000, endpoints=200, holders=3),
    Case(blocks=4, prompts=50_000),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The index after all prompts of a case."""

    case: Case
    blocks: int
    """Distinct ones still known."""
    most_bytes: int
    """The most that was counted at any time."""
    counted_bytes: int
    resident_bytes: int
    """Growth of the process."""


def measure(case: Case) -> Memory:
    """Measure one case in another process.

    Raises:
        subprocess.CalledProcessError: It failed; its words are on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.prefix_memory", msgspec.json.encode(case)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Memory)


def fill(case: Case) -> Memory:
    """Fill an index in this process."""
    # Numbers in a row are as good as hashes, and drawn faster.
    drawn = random.Random(0).getrandbits
    index = PrefixIndex(case.max_bytes)
    before = _resident_bytes()
    most = 0
    head: list[int] = []
    for number in range(case.prompts):
        if number % 100 == 0:
            head = [drawn(64) for _ in range(case.shared)]
        first = drawn(63)
        hashes = [*head, *range(first, first + case.blocks - case.shared)]
        for holder in range(case.holders):
            name = f"default/server-{(number + holder) % case.endpoints}"
            index.add(name, hashes, _CAPACITY)
        most = max(most, index.bytes)
    return Memory(case, len(index), most, index.bytes, _resident_bytes() - before)


def table(measured: Sequence[Memory]) -> Table:
    """Memory of the prefix index by the kind of prompt."""
    # Not above: it takes longer to import than a case takes to run in its process.
    from tools.bench.tables import new_table

    made = new_table(
        "Memory of the prefix index",
        *("blocks, shared", "endpoints, holders", "prompts", "blocks known"),
        *("counted MiB, most", "resident MiB", "ratio", "MiB per million blocks"),
    )
    for each in measured:
        case = each.case
        made.add_row(
            f"{case.blocks}, {case.shared}",
            f"{case.endpoints}, {case.holders}",
            f"{case.prompts}",
            f"{each.blocks}",
            f"{each.counted_bytes / 2**20:.1f}, {each.most_bytes / 2**20:.1f}",
            f"{each.resident_bytes / 2**20:.1f}",
            f"{each.resident_bytes / each.counted_bytes:.2f}",
            f"{each.resident_bytes / 2**20 / each.blocks * 1e6:.0f}",
        )
    return made


def _resident_bytes() -> int:
    """Return the anonymous memory; pages of files come and go with what other processes need."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith("Anonymous:")]
    return int(kilobytes) * 1024


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(fill(msgspec.json.decode(sys.argv[1], type=Case))))
