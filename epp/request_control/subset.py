"""The subset hint, by which the gateway restricts the endpoints of a request.

Endpoint picker protocol: ``envoy.lb.subset_hint`` / ``x-gateway-destination-endpoint-subset``, with
entries ``ip:port``, or ``ip`` for every port of it.
"""

from collections.abc import Sequence
from functools import lru_cache

from epp.request_control.errors import OutsideSubsetError
from epp.scheduling import Endpoint

_CACHED_SUBSETS = 256
_MAX_CACHED_ENTRIES = 1024
_MAX_CACHED_CHARS = 32_768
"""In some gateways a client's header sets the hint: the cache takes 40 MB at most."""
_MAX_ENTRIES = 16_384
"""Entries of a subset that are used, at 0.3 us each; further ones are ignored."""
_MAX_SHOWN = 5
"""Entries shown in an error message."""


def within(subset: Sequence[str], endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
    """Return those of ``endpoints`` that are in ``subset``, in their order.

    Args:
        subset: ``ip:port`` or ``ip``, an IPv6 address with or without brackets.
        endpoints: The pool.

    Raises:
        OutsideSubsetError: None of them is.
    """
    is_short = len(subset) <= _MAX_CACHED_ENTRIES and sum(map(len, subset)) <= _MAX_CACHED_CHARS
    parts = _cached_parts if is_short else _parts
    addresses, hosts = parts(tuple(subset[:_MAX_ENTRIES]))
    kept = [
        endpoint
        for endpoint in endpoints
        if endpoint.address in addresses
        or (hosts and endpoint.address.rpartition(":")[0].strip("[]") in hosts)
    ]
    if not kept:
        shown = ", ".join(subset[:_MAX_SHOWN]) or "no endpoint"
        more = f" and {len(subset) - _MAX_SHOWN} more" if len(subset) > _MAX_SHOWN else ""
        raise OutsideSubsetError(
            f"the gateway restricts this request to {shown}{more}, and none of the"
            f" {len(endpoints)} endpoints of the pool is one of them"
        )
    return kept


def _parts(subset: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the addresses and the hosts without a port."""
    addresses, hosts = set(), set()
    for entry in subset:
        has_port = entry.count(":") == 1 or "]:" in entry
        if has_port:
            addresses.add(entry)
        else:
            hosts.add(entry.strip("[]"))
    return frozenset(addresses), frozenset(hosts)


_cached_parts = lru_cache(maxsize=_CACHED_SUBSETS)(_parts)
