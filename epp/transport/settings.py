"""Settings of the transport: limits and timeouts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any

from epp.transport.http2 import ConnectionLimits
from epp.transport.http2.limits import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Limits of gRPC messages and streams."""

    max_message_bytes: int = 65 << 20
    """Maximum length of a received message: 1 MiB more than the longest request body, so that a
    longer body gets an HTTP response before its message exceeds this limit."""
    max_sent_message_bytes: int = 65 << 20
    """Maximum length of a sent message; a longer one ends its stream instead."""
    max_stream_seconds: float = inf
    """Maximum duration of a stream, which then ends with DEADLINE_EXCEEDED. Off by default: in
    lean mode a stream is silent for a whole generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts of a connection, in seconds, accurate to a second."""

    preface_seconds: float = 10.0
    """Maximum time from the TCP connection to its HTTP/2 preface, including the TLS handshake."""
    frame_seconds: float = 30.0
    """Maximum time for a frame or header block that arrives at less than 500 bytes a second."""
    idle_seconds: float = 900.0
    """Time without streams after which the connection is closed. Streams have no such limit: in
    lean mode they are silent for a whole generation."""
    keepalive_seconds: float = 60.0
    """Time without received bytes after which a PING is sent."""
    keepalive_timeout_seconds: float = 20.0
    """Time without a response to the PING after which the connection counts as lost; also how long
    a closing connection waits for the peer to close its side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """Limits and timeouts of a server; sizes in bytes, times in seconds."""

    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    messages: GrpcLimits = field(default_factory=GrpcLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    max_connections: int = 1024
    """Maximum number of connections; a further one closes the one that is idle longest."""
    max_total_buffered_bytes: int = 2 << 30
    """``max_buffered_bytes`` for all connections together; must not be less than that."""
    header_cache_bytes: int = 1 << 20
    """Size of the cache of decoded header blocks, for all connections together."""
    reuse_port: bool = False
    """SO_REUSEPORT: several processes share the port. Otherwise a port in use is an error."""

    def __post_init__(self) -> None:
        """Validate the settings.

        Raises:
            ValueError: A setting is out of its range.
        """
        require_positive(self.timeouts, self.messages)
        if self.max_connections < 1 or self.header_cache_bytes < 0:
            raise ValueError("max_connections must be positive, header_cache_bytes not negative")
        if self.max_total_buffered_bytes < self.connection.max_buffered_bytes:
            raise ValueError(
                f"max_total_buffered_bytes, {self.max_total_buffered_bytes}, must be at least"
                f" max_buffered_bytes, {self.connection.max_buffered_bytes}"
            )

    def with_values(self, values: Mapping[str, float]) -> "TransportSettings":
        """Return a copy with ``values`` by setting name (see :meth:`names`).

        Raises:
            ValueError: A value is out of its range.
        """
        parts: dict[str, Any] = {
            part: replace(holder, **_given(holder, values)) for part, holder in self._parts()
        }
        return replace(self, **parts, **_given(self, values))

    @classmethod
    def names(cls) -> dict[str, float]:
        """Return all settings, including those of the parts, by name with their defaults."""
        defaults = cls()
        holders = (defaults, *(holder for _, holder in defaults._parts()))
        return {name: getattr(each, name) for each in holders for name in _plain_names(each)}

    def _parts(self) -> tuple[tuple[str, "_Part"], ...]:
        return tuple((name, getattr(self, name)) for name in _PARTS)


_PARTS = ("connection", "messages", "timeouts")
_Part = ConnectionLimits | GrpcLimits | Timeouts


def _plain_names(holder: TransportSettings | _Part) -> list[str]:
    return [each.name for each in fields(holder) if each.name not in _PARTS]


def _given(holder: TransportSettings | _Part, values: Mapping[str, float]) -> dict[str, Any]:
    return {name: values[name] for name in _plain_names(holder) if name in values}
