"""What a request body may have."""

from dataclasses import dataclass
from typing import Final

DEFAULT_MAX_BODY_BYTES: Final = 64 << 20
DEFAULT_MAX_RATIO: Final = 100
"""JSON shrinks to a tenth; a text that repeats one prompt a hundred times, to a hundredth."""
DEFAULT_MAX_JSON_VALUES: Final = 4 << 20
"""No model reads as many tokens; all that can be said in 8 MiB and less."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a body that a parser reads."""

    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """Most bytes without the content encoding."""
    max_ratio: int = DEFAULT_MAX_RATIO
    """Most decoded bytes for one received byte, beyond the first MiB; 0 for any number."""
    max_json_values: int = DEFAULT_MAX_JSON_VALUES
    """Most values: numbers, texts, lists and objects (:mod:`.json_density`)."""
