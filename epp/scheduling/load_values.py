"""Load values of sets of endpoints that many decisions share, as columns kept up to date.

Most decisions choose among the whole pool, and few loads change between two of them. Reading the
values of 10 endpoints takes 4 thousand instructions, for each scorer and for the record of the
decision; reading a column takes 0.5 thousand. Sets that are new for each request, such as the
result of a filter, have no columns.
"""

from collections.abc import Sequence
from typing import Any, Final

LoadValues = tuple[float, float, float, int]
"""Waiting requests, running requests, KV-cache usage and requests in flight of an endpoint."""

TIMES_ASKED: Final = 16
"""Calls of :func:`load_columns` with the same endpoints after which columns are made; more than the
plugins of one request make."""

_NOBODY: Final[Sequence[Any]] = ()


class LoadColumns:
    """The load values of some endpoints, in their order; readers must not change them.

    Args:
        endpoints: The endpoints. Their loads belong to no other columns from now on.
    """

    __slots__ = ("endpoints", "free_cache", "values", "waiting_requests")

    def __init__(self, endpoints: Sequence[Any]) -> None:
        loads = [endpoint.load for endpoint in endpoints]
        self.endpoints = endpoints
        """Empty once a load belongs to other columns."""
        self.values: list[LoadValues] = [load.record() for load in loads]
        self.waiting_requests: list[float] = [load.waiting_requests for load in loads]
        self.free_cache: list[float] = [1.0 - load.kv_cache_usage for load in loads]
        """Fraction of KV-cache blocks that are free, 0.0 to 1.0."""
        for place, load in enumerate(loads):
            if load.columns is not None:
                load.columns.endpoints = _NOBODY
            load.columns, load.place = self, place


def load_columns(endpoints: Sequence[Any]) -> LoadColumns | None:
    """Return the columns of ``endpoints``; None until the same tuple has been passed often."""
    if not endpoints:
        return None
    load = endpoints[0].load
    columns: LoadColumns | None = load.columns
    if columns is not None and columns.endpoints is endpoints:
        return columns
    return LoadColumns(endpoints) if _is_often_asked_for(load, endpoints) else None


def _is_often_asked_for(load: Any, endpoints: Sequence[Any]) -> bool:  # noqa: ANN401 - a circle
    if load.asked_for is not endpoints:
        load.asked_for, load.times_asked = endpoints, 0
    load.times_asked += 1
    if load.times_asked < TIMES_ASKED or not isinstance(endpoints, tuple):
        return False
    load.asked_for, load.times_asked = _NOBODY, 0
    return True
