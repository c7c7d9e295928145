"""What a server counts, and one look at it for metrics and tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from epp.transport.grpc import GrpcCounters
from epp.transport.http2 import Http2Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportStatistics:
    """What a server holds now, and what has happened since its start."""

    connections: int
    streams: int
    waiting_bytes: int
    """Answers that wait for the windows of clients."""
    buffered_bytes: int
    """These, and messages that are not whole yet."""
    header_cache_bytes: int
    connections_total: int
    streams_total: int
    header_cache_hits: int
    header_cache_misses: int
    refused: Mapping[str, int]
    """How often a limit refused something, by what: connection, handshake, stream, header_list,
    call, message, sent_message."""
    ended: Mapping[str, int]
    """Connections that we ended, by reason: idle, timeout, evicted (for a newcomer, as the port was
    full), or the HTTP/2 error code of the client's fault; ENHANCE_YOUR_CALM is a flood."""
    held_back: Mapping[str, int]
    """How often a slow client was waited for: stream_full (it was not writable), read_paused,
    keepalive_ping."""
    broken_off: Mapping[str, int]
    """Streams that ended before their time, by reason: client_reset (before any answer),
    client_fault, deadline, unread_answers, handler_failure."""


@dataclass(slots=True)
class ServerCounters:
    """Counts of one server since its start."""

    http2: Http2Counters = field(default_factory=Http2Counters)
    grpc: GrpcCounters = field(default_factory=GrpcCounters)
    connections_opened: int = 0
    connections_refused: int = 0
    """No connection could be closed for it, or TLS without ALPN h2."""
    handshakes_failed: int = 0
    """TLS that came to nothing: no common version, no certificate of the client's, and the like."""
    connections_idle: int = 0
    """Shut down because they were not used."""
    reads_paused: int = 0
    """How often a connection was not read because its peer did not read."""
    pings_sent: int = 0
    """Because a connection was silent."""
    connections_timed_out: int = 0
    """An unfinished preface or frame, or no answer to a PING."""
