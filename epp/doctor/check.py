"""The record of a check."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from epp.doctor.findings import Finding

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """A check for one known problem of a subject: an Envoy, or a deployment."""

    name: str

    look: Callable[[S], Iterable[Finding]]
    """Yields a finding per occurrence; equal findings are reported once."""

    fine: str
    """Text of the report if there is no finding."""

    can_see: Callable[[S], Any] = lambda _: True
    """Whether the subject has the data that the check needs; otherwise it is skipped."""

    give: str = "--admin URL"
    """Options of the command that provide this data."""
