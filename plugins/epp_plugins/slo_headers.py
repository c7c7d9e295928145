"""The service level objectives that a request names in its headers, in milliseconds.

All plugins read them here, so that one value is an SLO for all of them or for none.
"""

from collections.abc import Mapping
from typing import Final

from epp_plugins.header_numbers import positive_number

TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
"""Longest time to the first token; the first of them that has a value counts."""
TPOT_HEADERS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
"""Longest time for each token after it; the first of them that has a value counts."""


def ttft_slo_ms(headers: Mapping[str, str]) -> float | None:
    """Return the longest time to the first token; None without a number above 0."""
    return _slo_ms(headers, TTFT_HEADERS)


def tpot_slo_ms(headers: Mapping[str, str]) -> float | None:
    """Return the longest time per output token; None without a number above 0."""
    return _slo_ms(headers, TPOT_HEADERS)


def _slo_ms(headers: Mapping[str, str], names: tuple[str, str]) -> float | None:
    text = headers.get(names[0]) or headers.get(names[1])
    return positive_number(text) if text else None
