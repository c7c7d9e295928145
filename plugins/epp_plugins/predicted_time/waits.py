"""Computes the wait and the service time of a further request at one endpoint.

A decision reads four numbers, which :func:`refresh` computes after events::

    wait(now)  = max(ready_at - now, least_wait)
    service(v) = base + per_unit * v

In serial mode an endpoint computes one prompt after the other; in slots mode it serves up to K
requests at once, each with its prompt and its decode.
"""

from heapq import heapify, heappop, heappush
from math import inf

from epp_plugins.predicted_time.endpoint import EndpointModel
from epp_plugins.predicted_time.service import ServiceModel

_MOST_SIMULATED = 32
"""With more requests in flight, the wait for a slot is estimated from means, not simulated."""
_LATE_FACTOR, _LATE_SECONDS = 2.0, 0.3
"""A prompt is late when it takes more than its prediction times the first, plus the second."""
_MOST_LATENESS = 64.0
"""Maximum factor by which the prompts behind a late one count as slower."""


def refresh(
    endpoint: EndpointModel,
    serial: ServiceModel,
    slots: ServiceModel,
    now: float,
    *,
    is_serial: bool,
) -> None:
    """Update the numbers of an endpoint.

    Args:
        endpoint: The endpoint.
        serial: Service times in serial mode.
        slots: Service times in slots mode.
        now: Seconds of the clock.
        is_serial: Whether serial mode applies, not slots mode.
    """
    endpoint.is_dirty = False
    if is_serial:
        k, model = endpoint.serial.factor, serial
        beside = endpoint.decoding + endpoint.others.decoding
    else:
        k, beside, model = endpoint.slots_slowness.factor, endpoint.in_flight, slots
    endpoint.base, endpoint.per_unit = k * model.base, k * model.per_unit(beside)
    endpoint.speed = 1.0 / k
    further = _cache_wait(endpoint) + endpoint.reserved_seconds
    if endpoint.excluded_until > now:
        endpoint.ready_at = inf
    elif is_serial:
        ready_at, least_wait = serial_wait(endpoint, serial, now)
        endpoint.ready_at, endpoint.least_wait = ready_at + further, least_wait + further
    else:
        endpoint.ready_at = slot_free_at(endpoint, slots, now) + further
        endpoint.least_wait = _lateness_of_slots(endpoint, slots, now) + further


def serial_wait(endpoint: EndpointModel, model: ServiceModel, now: float) -> tuple[float, float]:
    """Return when all pending prompts are done, and the least wait from now on.

    The second applies when the current prompt takes longer than predicted. If it takes much longer,
    the prompts behind it count as slow as well.
    """
    head, others = endpoint.head, endpoint.others
    if head is None and not others.pending:
        return -inf, 0.0
    k, per_unit = endpoint.serial.factor, model.per_unit(endpoint.decoding + others.decoding)
    count, units = len(endpoint.pending) + others.pending, endpoint.pending_units + others.units
    total = k * (count * model.base + units * per_unit)
    if head is not None and head.sent_at <= others.oldest_at:
        began_at, head_units = head.sent_at, head.units
    else:
        began_at, head_units = others.oldest_at, others.head_units
    own = k * (model.base + head_units * per_unit)
    idle_at = endpoint.idle_at if endpoint.idle_at > others.idle_at else others.idle_at
    began_at = max(idle_at, began_at)
    rest = total - own if total > own else 0.0
    late = _lateness(now - began_at, own)
    if late:
        most = (1.0 + late / own) if own > late / _MOST_LATENESS else _MOST_LATENESS
        return -inf, rest * most + late
    return began_at + total, rest


def slot_free_at(endpoint: EndpointModel, model: ServiceModel, now: float) -> float:
    """Return when a further request would get a slot; -inf if there is a free one."""
    count, slots, others = endpoint.in_flight, endpoint.slots, endpoint.others
    if not slots or count < slots:
        return -inf
    k, hold = endpoint.slots_slowness.factor, endpoint.decode_seconds
    base, per_unit = k * model.base, k * model.per_unit(count)
    if count > _MOST_SIMULATED:
        pending = len(endpoint.pending) + others.pending
        units = endpoint.pending_units + others.units
        mean = hold + (base + units / pending * per_unit if pending else 0.0)
        return now + (count + 1 - slots) * mean / slots
    # Requests of others: those that decode still take half of the mean time, the rest begin now.
    ends = [now + hold / 2.0] * others.decoding
    queue = []
    if others.pending:
        takes = base + others.units / others.pending * per_unit + hold
        queue = [takes] * others.pending
    for request in endpoint.requests:
        if request.first_at is not None:
            ends.append(max(now, request.first_at + hold))
        elif request.slot_at is not None:
            takes = base + request.units * per_unit + hold
            ends.append(max(now, request.slot_at + takes))
        else:
            queue.append(base + request.units * per_unit + hold)
    heapify(ends)
    while len(ends) > slots:  # K became less
        heappop(ends)
    for takes in queue:
        free_at = heappop(ends) if len(ends) >= slots else now
        heappush(ends, free_at + takes)
    return ends[0] if len(ends) >= slots else -inf


def _lateness_of_slots(endpoint: EndpointModel, model: ServiceModel, now: float) -> float:
    """Return how late the oldest prompt is, in seconds; 0 if it has no slot."""
    head = endpoint.head
    if head is None or head.slot_at is None:
        return 0.0
    own = endpoint.slots_slowness.factor * model.predict(head.units, head.slot_beside)
    return _lateness(now - head.slot_at, own)


def _lateness(passed: float, predicted: float) -> float:
    """Return by how much a prompt exceeds its prediction if it is late, else 0.0."""
    return passed - predicted if passed > _LATE_FACTOR * predicted + _LATE_SECONDS else 0.0


def _cache_wait(endpoint: EndpointModel) -> float:
    """Return the seconds until KV-cache blocks are free, estimated from the cache's usage.

    0 while no request waits: then the blocks have sufficed, however few are free.
    """
    constants = endpoint.constants
    above = endpoint.kv_usage - constants.kv_full
    if above <= 0.0 or not endpoint.waiting:
        return 0.0
    share = min(1.0, above / constants.kv_range)
    ahead = endpoint.waiting + endpoint.sent_since_scrape + 1
    return (
        share
        * ahead
        * endpoint.decode_seconds
        / max(1, endpoint.decoding + endpoint.others.decoding)
    )
