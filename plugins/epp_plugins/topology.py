"""Closeness of two endpoints."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from epp.scheduling import AttributeKey, Endpoint
from epp_plugins.state_keys import Topology


class Closeness(IntEnum):
    """Narrowest level that two endpoints share; greater is closer."""

    NONE = 0
    REGION = 1
    ZONE = 2
    RACK = 3
    HOST = 4


CLOSENESS_SCORES: Final = {
    Closeness.NONE: 0.0,
    Closeness.REGION: 0.02,
    Closeness.ZONE: 0.05,
    Closeness.RACK: 0.2,
    Closeness.HOST: 1.0,
}
"""Scores by closeness, for ``topology-affinity-scorer`` and for pairs of prefill and decode."""

# Looking up a member in its class takes as long as the comparisons (Python 3.11).
_NONE, _REGION, _ZONE, _RACK, _HOST = Closeness


def closeness(one: Topology, other: Topology) -> Closeness:
    """Return the narrowest of host, rack, zone and region at which both have the same value."""
    if one.host and one.host == other.host:
        return _HOST
    if one.rack and one.rack == other.rack:
        return _RACK
    if one.zone and one.zone == other.zone:
        return _ZONE
    if one.region and one.region == other.region:
        return _REGION
    return _NONE


def closeness_to(
    peer: Topology, endpoints: Sequence[Endpoint], key: AttributeKey[Topology]
) -> list[Closeness]:
    """Return the closeness of each endpoint to ``peer``, in order; NONE if unknown."""
    return [
        _NONE if (own := endpoint.attributes.get(key)) is None else closeness(peer, own)
        for endpoint in endpoints
    ]
