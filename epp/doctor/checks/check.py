"""What a check is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from epp.doctor.findings import Finding
from epp.doctor.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Check:
    """One known trap."""

    name: str

    look: Callable[[Gateway], Iterable[Finding]]
    """Yields a finding for each place where the trap is; equal ones are reported once."""

    fine: str
    """What to say where there is none."""

    can_see: Callable[[Gateway], bool] = lambda _: True
    """Whether the source tells what the check looks at; without it the check is left out."""
