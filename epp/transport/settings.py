"""Everything that can be set on the transport, and what it counts."""

from dataclasses import dataclass, field

from epp.transport.grpc import GrpcCounters, GrpcLimits
from epp.transport.http2 import ConnectionLimits, Http2Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a connection may keep us waiting; kept to the second."""

    preface_seconds: float = 10.0
    """From the connection to its HTTP/2 preface, TLS handshake included."""
    frame_seconds: float = 30.0
    """Without a byte in the middle of a frame or a header block."""
    idle_seconds: float = 900.0
    """Without a stream; then the connection is closed. Streams have no limit of their own: in lean
    mode they are silent for a whole generation."""
    keepalive_seconds: float = 60.0
    """Without a byte, after which the peer is asked for a sign of life with a PING."""
    keepalive_timeout_seconds: float = 20.0
    """Without an answer to it, after which the connection counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """What a server is told besides where to listen and what to serve."""

    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    messages: GrpcLimits = field(default_factory=GrpcLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    max_connections: int = 1024
    """Connections open at once; one more is closed as soon as it is made."""
    header_cache_bytes: int = 1 << 20
    """Header blocks kept with what they mean, all connections together."""
    reuse_port: bool = False
    """SO_REUSEPORT: several processes share the port. Without it a taken port is an error."""


@dataclass(slots=True)
class ServerCounters:
    """Counts of one server since its start; read by whoever exports metrics."""

    http2: Http2Counters = field(default_factory=Http2Counters)
    grpc: GrpcCounters = field(default_factory=GrpcCounters)
    connections_opened: int = 0
    connections_refused: int = 0
    """Beyond the limit, or TLS without ALPN h2."""
    connections_timed_out: int = 0
    """An unfinished preface or frame, or no answer to a PING."""
