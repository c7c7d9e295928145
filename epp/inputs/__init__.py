"""Input written by operators: files and their changes, options, durations and quantities.

This package imports nothing of ``epp``, so every layer and every plugin may import it.
"""

from epp.inputs.files import (
    FollowedFile,
    SettledChanges,
    UnreadableFileError,
    of_worker,
    why_unreadable,
)
from epp.inputs.options import MAX_PORT, Form, Option, Panel
from epp.inputs.quantities import duration_seconds, optional_duration_seconds, quantity

__all__ = [
    "MAX_PORT",
    "FollowedFile",
    "Form",
    "Option",
    "Panel",
    "SettledChanges",
    "UnreadableFileError",
    "duration_seconds",
    "of_worker",
    "optional_duration_seconds",
    "quantity",
    "why_unreadable",
]
