"""What all limits have in common."""

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def require_positive(*holders: "DataclassInstance") -> None:
    """Check all fields of some dataclasses.

    Raises:
        ValueError: One of them is not above 0.
    """
    for holder in holders:
        for each in fields(holder):
            if getattr(holder, each.name) <= 0:
                raise ValueError(f"{each.name} must be positive")
