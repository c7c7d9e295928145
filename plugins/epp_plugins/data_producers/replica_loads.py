"""Adds the requests and tokens in flight of other replicas, for ``inflight-load-producer``.

All state is in attributes of the endpoints, so it survives a reload: the sum over all replicas,
which plugins read, and the parts of the other replicas. This replica's own part is the difference.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from epp.replication.plugins import replica_key
from epp.scheduling import AttributeKey, Endpoint
from epp_plugins.state_keys import InFlightLoad

Part = tuple[int, int]
"""Requests and tokens in flight."""

_NOTHING: Final = InFlightLoad()
_NO_PARTS: Final[Mapping[str, Part]] = MappingProxyType({})
_decode = msgspec.msgpack.Decoder(dict[int, tuple[int, int]]).decode
_encode = msgspec.msgpack.Encoder().encode


class ReplicaLoads:
    """Adds the counts of other replicas to an attribute of the endpoints.

    Args:
        name: Name of the producer.
        load: The attribute.
    """

    def __init__(self, name: str, load: AttributeKey[InFlightLoad]) -> None:
        self._load = load
        self._parts = AttributeKey[Mapping[str, Part]](f"in-flight-of-replicas/{name}")
        self._endpoints: dict[int, Endpoint] = {}
        """The endpoints of the pool by their replica keys."""
        self._named: dict[str, set[int]] = {}
        """Keys of the endpoints in each replica's last message."""

    def added(self, endpoint: Endpoint) -> None:
        """Start to count on ``endpoint``; drop the parts of an earlier server of its name."""
        self._drop_parts(endpoint)
        self._endpoints[replica_key(endpoint)] = endpoint

    def removed(self, endpoint: Endpoint) -> None:
        """Stop counting on ``endpoint``."""
        self._endpoints.pop(replica_key(endpoint), None)
        self._drop_parts(endpoint)

    def own(self, endpoint: Endpoint) -> InFlightLoad:
        """Return this replica's own requests and tokens in flight on ``endpoint``."""
        total = endpoint.attribute(self._load) or _NOTHING
        parts = endpoint.attribute(self._parts)
        if not parts:
            return total
        return InFlightLoad(
            max(0, total.requests - sum(part[0] for part in parts.values())),
            max(0, total.tokens - sum(part[1] for part in parts.values())),
        )

    def encoded(self) -> bytes:
        """Return the message with this replica's own part of each endpoint, without zeros."""
        parts = {}
        for key, endpoint in self._endpoints.items():
            if self._load in endpoint.attributes:
                own = self.own(endpoint)
                if own.requests or own.tokens:
                    parts[key] = own.requests, own.tokens
        return _encode(parts)

    def receive(self, replica: str, encoded: bytes) -> None:
        """Replace a replica's parts by those of its new message.

        Raises:
            ValueError: The message cannot be decoded.
        """
        parts = _decode(encoded)
        named = self._named.get(replica)
        before = self._endpoints.keys() if named is None else named
        for key in before - parts.keys():
            self._set(key, replica, (0, 0))
        for key, (requests, tokens) in parts.items():
            self._set(key, replica, (max(requests, 0), max(tokens, 0)))
        self._named[replica] = set(parts)

    def left(self, replica: str) -> None:
        """Remove the parts of a replica that has gone."""
        self._named.pop(replica, None)
        for key in self._endpoints:
            self._set(key, replica, (0, 0))

    def _set(self, key: int, replica: str, part: Part) -> None:
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            return
        parts = endpoint.attribute(self._parts) or _NO_PARTS
        before = parts.get(replica, (0, 0))
        if part == before:
            return
        if any(part):
            endpoint.attributes[self._parts] = {**parts, replica: part}
        else:
            endpoint.attributes[self._parts] = {
                name: each for name, each in parts.items() if name != replica
            }
        total = endpoint.attribute(self._load) or _NOTHING
        endpoint.attributes[self._load] = InFlightLoad(
            max(0, total.requests + part[0] - before[0]), max(0, total.tokens + part[1] - before[1])
        )

    def _drop_parts(self, endpoint: Endpoint) -> None:
        if self._parts in endpoint.attributes:
            endpoint.attributes[self._load] = self.own(endpoint)
            del endpoint.attributes[self._parts]
