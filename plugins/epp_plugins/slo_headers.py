"""Service level objectives in request headers, in milliseconds.

All plugins use these functions, so that a value is valid for all of them or for none.
"""

from collections.abc import Mapping
from typing import Final

from epp_plugins.header_numbers import positive_number

TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
"""Headers of the time to first token, in order of precedence."""
TPOT_HEADERS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
"""Headers of the time per output token, in order of precedence."""


def ttft_slo_ms(headers: Mapping[str, str]) -> float | None:
    """Return the objective for the time to first token; None without a number above 0."""
    return _slo_ms(headers, TTFT_HEADERS)


def tpot_slo_ms(headers: Mapping[str, str]) -> float | None:
    """Return the objective for the time per output token; None without a number above 0."""
    return _slo_ms(headers, TPOT_HEADERS)


def _slo_ms(headers: Mapping[str, str], names: tuple[str, str]) -> float | None:
    text = headers.get(names[0]) or headers.get(names[1])
    return positive_number(text) if text else None
