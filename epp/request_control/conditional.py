"""``Prefer: if-available``: send the request only to a server that has its prefix in its cache.

A coordinator uses it to request a decode without a prefill (conditional decode): status 412 tells
it that the prompt must be prefilled first. Nothing is reserved then, and no plugin is notified.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from epp.request_control.errors import NotCachedError
from epp.scheduling import CycleState, SchedulingResult, StateKey

PREFER_HEADER: Final = "prefer"

PREFIX_MATCHES: Final = StateKey[Any]("prefix-matches")
"""Written by the default prefix producer; ``blocks`` has the number of held blocks
by endpoint name."""


def acceptance(
    headers: Mapping[str, str], state: CycleState
) -> Callable[[SchedulingResult], None] | None:
    """Return the check that a result must pass; None if the request needs no cached prefix.

    Args:
        headers: The request's headers, by lower-case name.
        state: The cycle state with the results of the data producers.
    """
    preferred = headers.get(PREFER_HEADER)
    # RFC 7240 §2: preferences separated by commas, each a token that ends at "=" or ";".
    if preferred is None or not any(
        each.partition(";")[0].partition("=")[0].strip().lower() == "if-available"
        for each in preferred.split(",")
    ):
        return None
    return partial(_require_cached, state)


def _require_cached(state: CycleState, result: SchedulingResult) -> None:
    matches = state.read(PREFIX_MATCHES)
    name = result.endpoints[0].endpoint.name
    if matches is None or not matches.blocks.get(name):
        raise NotCachedError("no decode worker has the requested KV cache")
