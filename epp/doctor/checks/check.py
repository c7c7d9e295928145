"""The record of a check."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from epp.doctor.findings import Finding
from epp.doctor.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Check:
    """A check for one known misconfiguration."""

    name: str

    look: Callable[[Gateway], Iterable[Finding]]
    """Yields a finding per occurrence; equal findings are reported once."""

    fine: str
    """Text if there is no finding."""

    can_see: Callable[[Gateway], bool] = lambda _: True
    """Whether the source has the data that the check needs; otherwise it is skipped."""
