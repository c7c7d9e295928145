"""The image, as tests use it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES: dict[str, str] = {}
"""What was measured, to be printed."""


@dataclass(frozen=True)
class Image:
    """The image, and a build of its first stage with the pure wheel, from a copy of the sources."""

    root: Path
    settings: Mapping[str, Any]
    pure: Path
