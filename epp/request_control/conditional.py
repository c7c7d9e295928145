"""``Prefer: if-available``: send the request only to a server that has its prefix in its cache.

A coordinator asks so for a decode without a prefill (conditional decode): with 412 it knows that it
has to have the prompt prefilled first. Nothing is reserved then, and no plugin learns of it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from epp.request_control.errors import NotCachedError
from epp.scheduling import CycleState, SchedulingResult, StateKey

PREFER_HEADER: Final = "prefer"

_MATCHES: Final = StateKey[Any]("prefix-matches")
"""What the default prefix producer writes: ``blocks``, the blocks held by endpoint name."""


def acceptance(
    headers: Mapping[str, str], state: CycleState
) -> Callable[[SchedulingResult], None] | None:
    """Return what a choice has to pass; None for a request that does not ask for a cached prefix.

    Args:
        headers: The request's, by lower-case name.
        state: What the producers found out.
    """
    preferred = headers.get(PREFER_HEADER)
    # RFC 7240 §2: preferences parted by commas, each a token that ends at "=" or ";".
    if preferred is None or not any(
        each.partition(";")[0].partition("=")[0].strip().lower() == "if-available"
        for each in preferred.split(",")
    ):
        return None
    return partial(_require_cached, state)


def _require_cached(state: CycleState, result: SchedulingResult) -> None:
    matches = state.read(_MATCHES)
    name = result.endpoints[0].endpoint.name
    if matches is None or not matches.blocks.get(name):
        raise NotCachedError("no decode worker has the requested KV cache")
