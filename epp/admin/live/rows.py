"""The rows of the table of endpoints, as they are sent to the page."""

from typing import Final, NamedTuple

from epp.admin.live.pool_reader import EndpointReading
from epp.admin.live.window import NO_RATES, EndpointRates

ROLE_LABEL: Final = "llm-d.ai/role"
_OLD_SECONDS: Final = 10.0
"""Ages above this are sent in whole seconds."""
_MAX_ADAPTERS: Final = 8
"""Maximum adapters named in a row."""


class Row(NamedTuple):
    """One endpoint."""

    name: str
    address: str
    role: str
    """Stages that the endpoint performs, from its label; "" for all."""
    state: str
    reason: str
    returns_seconds: int | None
    share: float
    draining: str
    queue: float
    """Waiting requests, as scorers see them."""
    waiting: int
    """Waiting requests, as last scraped."""
    running: int
    kv_usage: float
    in_flight: int
    """Requests in flight from this endpoint picker."""
    metrics_age: float | None
    """Seconds since its metrics were requested; None if they never were."""
    adapters: list[str]
    """LoRA adapters with requests."""
    more_adapters: int
    max_adapters: int
    picked_share: float
    per_second: float
    failed_per_second: float
    seconds: float | None
    first_seconds: float | None


def row(reading: EndpointReading, rates: EndpointRates | None, now: float) -> Row:
    """Return the row of an endpoint.

    Args:
        reading: Its state.
        rates: Rates of its requests; None without requests.
        now: Seconds of the monotonic clock.
    """
    endpoint, metrics = reading.endpoint, reading.metrics
    adapters = sorted(metrics.active_adapters | metrics.waiting_adapters)
    age = None if metrics.requested_at is None else max(0.0, now - metrics.requested_at)
    returns = reading.returns_seconds
    return Row(
        endpoint.name,
        endpoint.address,
        endpoint.labels.get(ROLE_LABEL, ""),
        reading.state,
        reading.reason,
        None if returns is None else round(returns),
        round(reading.share, 3),
        reading.draining,
        round(reading.queue, 1),
        metrics.waiting_requests,
        metrics.running_requests,
        round(metrics.kv_cache_usage, 3),
        reading.in_flight,
        age if age is None else round(age, 1) if age < _OLD_SECONDS else round(age),
        adapters[:_MAX_ADAPTERS],
        max(0, len(adapters) - _MAX_ADAPTERS),
        metrics.max_adapters,
        *(rates or NO_RATES),
    )


def changed_cells(before: list[Row], after: list[Row]) -> dict[str, dict[str, object]] | None:
    """Return the changed values by row and column; None if the set of endpoints changed."""
    if len(before) != len(after):
        return None
    changed: dict[str, dict[str, object]] = {}
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if old == new:
            continue
        if old[:2] != new[:2]:
            return None
        changed[str(index)] = {
            str(column): value
            for column, (former, value) in enumerate(zip(old, new, strict=True))
            if former != value
        }
    return changed
