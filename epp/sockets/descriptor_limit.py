"""Raises the descriptor limit of the process and divides it among its ports.

Every connection and every open file needs a descriptor. A process without free descriptors can
neither accept nor connect nor read its configuration. So the limit is raised as far as possible and
divided, so that connections to one port cannot use the descriptors of the others.
"""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import NamedTuple

PROCESS = 64
"""Files, pipes and the event loops: 22 after a start; a reload opens some for a moment."""
RESERVE = 64
"""Reserve for unplanned uses, such as a plugin's files and DNS lookups."""


class DescriptorLimit(NamedTuple):
    """RLIMIT_NOFILE."""

    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorDemand:
    """Number of descriptors needed, by purpose."""

    ext_proc: int
    health: int
    metrics: int
    scrapes: int
    """Connections to model servers: one per endpoint and data source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Number of descriptors available, by purpose."""

    limit: int
    ext_proc: int
    health: int
    metrics: int
    scrapes: int
    needed: int
    """The limit that would satisfy the whole demand."""

    @property
    def is_enough(self) -> bool:
        """Whether the limit satisfies the whole demand."""
        return self.limit >= self.needed


_LEAST = DescriptorDemand(ext_proc=16, health=8, metrics=4, scrapes=8)


def raise_limit() -> DescriptorLimit:
    """Raise the soft limit to the hard one, if the system allows it; return the old limits."""
    before = descriptor_limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before.soft != before.hard:
        # macOS reports "unlimited" but has a lower maximum (ValueError).
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return before


def descriptor_limit() -> DescriptorLimit:
    """Return the limits; "unlimited" becomes 2**31."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DescriptorLimit(_number(soft), _number(hard))


def open_descriptors() -> int | None:
    """Return the number of open descriptors; None if it is unknown."""
    try:
        with os.scandir("/proc/self/fd") as found:
            return sum(1 for _ in found) - 1  # one belongs to the scan itself
    except OSError:
        return None


def share_out(limit: int, demand: DescriptorDemand) -> Shares:
    """Divide ``limit`` among the purposes.

    Spare descriptors go to scrapes. If the limit is too low, every purpose gets the same fraction
    of its demand, but at least a small minimum.
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
