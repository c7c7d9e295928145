"""How many descriptors the process may have, and how many connections each port may hold.

Every connection takes a descriptor, and so does every file that is opened. A process that has none
left can neither accept nor connect, nor read its configuration. So the limit is raised as far as
possible and shared out: whatever connects to one port, the others and the process keep theirs.
"""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import NamedTuple

PROCESS = 64
"""Files, pipes and the event loops: 22 after a start; a reload opens some for a moment."""
RESERVE = 64
"""Kept for what cannot be planned: a plugin's files, a name's look-up."""


class DescriptorLimit(NamedTuple):
    """RLIMIT_NOFILE, soft and hard."""

    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How many descriptors are wanted, by purpose."""

    ext_proc: int
    health: int
    metrics: int
    scrapes: int
    """Connections to model servers, one for each endpoint and data source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How many descriptors there are, by purpose."""

    limit: int
    ext_proc: int
    health: int
    metrics: int
    scrapes: int
    needed: int
    """The least limit that would satisfy the whole demand."""

    @property
    def is_enough(self) -> bool:
        """Every purpose has what it wants."""
        return self.limit >= self.needed


_LEAST = Demand(ext_proc=16, health=8, metrics=4, scrapes=8)


def raise_limit() -> DescriptorLimit:
    """Raise the soft limit to the hard one, if the system allows it; return what they were."""
    before = descriptor_limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before.soft != before.hard:
        # macOS has a lower maximum than the "unlimited" that it tells (ValueError).
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return before


def descriptor_limit() -> DescriptorLimit:
    """Return the limits; one that is unlimited is a large number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DescriptorLimit(_number(soft), _number(hard))


def open_descriptors() -> int | None:
    """Return how many descriptors are open; None where that cannot be seen."""
    try:
        with os.scandir("/proc/self/fd") as found:
            return sum(1 for _ in found) - 1  # one is the folder's own
    except OSError:
        return None


def share_out(limit: int, demand: Demand) -> Shares:
    """Return what each purpose may have.

    Scrapes get all that the others leave. Where the limit is too low for the demand, everybody
    gets the same part of what they want, but not less than a handful.
    """
    wanted = {each.name: getattr(demand, each.name) for each in fields(demand)}
    total = sum(wanted.values())
    available = max(0, limit - PROCESS - RESERVE)
    if total <= available:
        shares = wanted | {"scrapes": wanted["scrapes"] + available - total}
    else:
        shares = {
            name: min(count, max(getattr(_LEAST, name), count * available // total))
            for name, count in wanted.items()
        }
    return Shares(limit=limit, needed=total + PROCESS + RESERVE, **shares)


def _number(limit: int) -> int:
    return 1 << 31 if limit == resource.RLIM_INFINITY else limit
