"""The image as tests see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES: dict[str, str] = {}
"""What was measured, to be printed."""


@dataclass(frozen=True)
class Image:
    """The image, and a second build of its first stage from a copy of the sources."""

    root: Path
    settings: Mapping[str, Any]
    second_build: Path
