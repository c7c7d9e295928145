"""What endpoint pickers tell each other about the requests that they have in flight."""

from collections.abc import Callable

import msgspec

from epp.replication.plugins import replica_key
from epp.scheduling import Endpoint
from epp_plugins.predicted_time.others import Part
from epp_plugins.predicted_time.tracked import TrackedEndpoint

_decode = msgspec.msgpack.Decoder(dict[int, Part]).decode
_encode = msgspec.msgpack.Encoder().encode


class SharedWork:
    """Tells what the model has in flight, and adds the work of others to it.

    Args:
        find: Returns what is tracked of an endpoint.
    """

    def __init__(self, find: Callable[[Endpoint], TrackedEndpoint | None]) -> None:
        self._find = find
        self._endpoints: dict[int, Endpoint] = {}
        """The endpoints of the pool by their replica keys."""
        self._told: dict[str, set[int]] = {}
        """Keys of the endpoints in each endpoint picker's last part."""

    def added(self, endpoint: Endpoint) -> None:
        """Share the work at ``endpoint``, too."""
        self._endpoints[replica_key(endpoint)] = endpoint

    def removed(self, endpoint: Endpoint) -> None:
        """Share the work at ``endpoint`` no more."""
        self._endpoints.pop(replica_key(endpoint), None)

    def encoded(self, now: float) -> bytes:
        """Return what this process has in flight, without idle endpoints."""
        parts: dict[int, Part] = {}
        for key, endpoint in self._endpoints.items():
            tracked = self._find(endpoint)
            if tracked is not None and (part := tracked.part(now)) is not None:
                parts[key] = part
        return _encode(parts)

    def receive(self, picker: str, encoded: bytes, now: float) -> None:
        """Take what another endpoint picker has in flight, in place of what it had before.

        Raises:
            ValueError: It cannot be understood.
        """
        parts = _decode(encoded)
        for key in self._told.get(picker, self._endpoints.keys()) - parts.keys():
            self._share(key, picker, None, now)
        for key, part in parts.items():
            self._share(key, picker, part, now)
        self._told[picker] = set(parts)

    def left(self, picker: str, now: float) -> None:
        """Forget what an endpoint picker has in flight."""
        self._told.pop(picker, None)
        for key in self._endpoints:
            self._share(key, picker, None, now)

    def _share(self, key: int, picker: str, part: Part | None, now: float) -> None:
        endpoint = self._endpoints.get(key)
        tracked = None if endpoint is None else self._find(endpoint)
        if tracked is not None:
            tracked.share(picker, part, now)
