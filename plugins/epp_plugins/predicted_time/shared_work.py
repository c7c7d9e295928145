"""Exchange of the requests in flight between endpoint pickers."""

from collections.abc import Callable

import msgspec

from epp.replication.plugins import replica_key
from epp.scheduling import Endpoint
from epp_plugins.predicted_time.others import Part
from epp_plugins.predicted_time.tracked import TrackedEndpoint

_decode = msgspec.msgpack.Decoder(dict[int, Part]).decode
_encode = msgspec.msgpack.Encoder().encode


class SharedWork:
    """Reports the model's requests in flight, and adds those of others to the model.

    Args:
        find: Returns the tracked endpoint; None if it is not tracked.
    """

    def __init__(self, find: Callable[[Endpoint], TrackedEndpoint | None]) -> None:
        self._find = find
        self._endpoints: dict[int, Endpoint] = {}
        """The endpoints of the pool by their replica keys."""
        self._reported: dict[str, set[int]] = {}
        """Keys of the endpoints in each endpoint picker's last report."""

    def added(self, endpoint: Endpoint) -> None:
        """Begin to share the work at ``endpoint``."""
        self._endpoints[replica_key(endpoint)] = endpoint

    def removed(self, endpoint: Endpoint) -> None:
        """Stop sharing the work at ``endpoint``."""
        self._endpoints.pop(replica_key(endpoint), None)

    def encoded(self, now: float) -> bytes:
        """Return the report of this process's requests in flight; it omits idle endpoints."""
        parts: dict[int, Part] = {}
        for key, endpoint in self._endpoints.items():
            tracked = self._find(endpoint)
            if tracked is not None and (part := tracked.part(now)) is not None:
                parts[key] = part
        return _encode(parts)

    def receive(self, picker: str, encoded: bytes, now: float) -> None:
        """Replace another endpoint picker's requests in flight by its new report.

        Raises:
            ValueError: The report cannot be decoded.
        """
        parts = _decode(encoded)
        for key in self._reported.get(picker, self._endpoints.keys()) - parts.keys():
            self._share(key, picker, None, now)
        for key, part in parts.items():
            self._share(key, picker, part, now)
        self._reported[picker] = set(parts)

    def left(self, picker: str, now: float) -> None:
        """Forget the requests of an endpoint picker that has gone."""
        self._reported.pop(picker, None)
        for key in self._endpoints:
            self._share(key, picker, None, now)

    def _share(self, key: int, picker: str, part: Part | None, now: float) -> None:
        endpoint = self._endpoints.get(key)
        tracked = None if endpoint is None else self._find(endpoint)
        if tracked is not None:
            tracked.share(picker, part, now)
