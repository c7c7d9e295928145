"""Everything that can be set on the transport."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from epp.transport.grpc import GrpcLimits
from epp.transport.http2 import ConnectionLimits
from epp.transport.limits import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a connection may keep us waiting; kept to the second."""

    preface_seconds: float = 10.0
    """From the connection to its HTTP/2 preface, TLS handshake included."""
    frame_seconds: float = 30.0
    """In the middle of a frame or a header block with less than 500 bytes a second."""
    idle_seconds: float = 900.0
    """Without a stream; then the connection is closed. Streams have no limit of their own: in lean
    mode they are silent for a whole generation."""
    keepalive_seconds: float = 60.0
    """Without a byte, after which the peer is asked for a sign of life with a PING."""
    keepalive_timeout_seconds: float = 20.0
    """Without an answer to it, after which the connection counts as lost; so long we also wait at
    the end of a connection for the peer to close its side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """What a server is told besides where to listen and what to serve."""

    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    messages: GrpcLimits = field(default_factory=GrpcLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    max_connections: int = 1024
    """Connections open at once; one more is closed as soon as it is made."""
    max_total_buffered_bytes: int = 2 << 30
    """What ``max_buffered_bytes`` bounds, of all connections together; not less than that."""
    header_cache_bytes: int = 1 << 20
    """Header blocks kept with what they mean, all connections together."""
    reuse_port: bool = False
    """SO_REUSEPORT: several processes share the port. Without it a taken port is an error."""

    def __post_init__(self) -> None:
        """Refuse what could never work.

        Raises:
            ValueError: A limit is out of its range.
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
        """Return these settings with some replaced, by the names that :meth:`names` returns.

        Raises:
            ValueError: A value is out of its range.
        """
        parts: dict[str, Any] = {
            part: replace(holder, **_given(holder, values)) for part, holder in self._parts()
        }
        return replace(self, **parts, **_given(self, values))

    @classmethod
    def names(cls) -> dict[str, float]:
        """Return every single setting by name, with its default."""
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
