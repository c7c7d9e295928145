"""Limits of request bodies."""

from dataclasses import dataclass
from typing import Final

DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 16 << 20
"""A few KB can decode to this; hardly any client compresses a request."""
DEFAULT_MAX_RATIO: Final = 100
"""JSON usually compresses to a tenth; one prompt repeated 100 times, to a hundredth."""
DEFAULT_MAX_JSON_VALUES: Final = 4 << 20
"""More than the tokens that any model reads; a body of up to 8 MiB cannot have more."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a body that a parser reads."""

    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    """Maximum length of a compressed body without its content encoding."""
    max_ratio: int = DEFAULT_MAX_RATIO
    """Maximum decoded bytes per received byte, beyond the first MiB; 0 for no limit."""
    max_json_values: int = DEFAULT_MAX_JSON_VALUES
    """Maximum number of numbers, strings, arrays and objects (:mod:`.json_density`)."""
