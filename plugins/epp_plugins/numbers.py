"""Numeric endpoint attributes, for plugins whose configuration names one."""

import sys
from collections.abc import Sequence
from typing import Any

from epp.scheduling import AttributeKey, Endpoint

_MOST = sys.float_info.max


def numbers_of(endpoints: Sequence[Endpoint], key: AttributeKey[Any]) -> list[float | None]:
    """Return the attribute of each endpoint, in order; None if it is not a finite number."""
    # The comparison excludes NaN, infinities and integers that a float cannot represent.
    return [
        float(value)
        if isinstance(value := endpoint.attributes.get(key), (int, float))
        and not isinstance(value, bool)
        and -_MOST <= value <= _MOST
        else None
        for endpoint in endpoints
    ]
