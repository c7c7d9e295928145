"""Counters of a server, and a snapshot of them for metrics and tests."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Http2Counters:
    """HTTP/2 counts of all connections since the start."""

    streams_opened: int = 0
    streams_answered: int = 0
    """Streams on which DATA was sent before they ended."""
    streams_refused: int = 0
    """Streams above the limit of concurrent streams."""
    streams_reset_early: int = 0
    """Streams that the client reset before any DATA was sent."""
    stream_faults: int = 0
    """Streams that the server reset because of a stream error."""
    header_lists_refused: int = 0
    """Requests answered with 431."""
    streams_filled: int = 0
    """How often a stream became unwritable, because too many bytes waited to be sent on it."""
    connection_faults: Counter[str] = field(default_factory=Counter)
    """Connections ended by GOAWAY, by name of the error code."""


@dataclass(slots=True)
class GrpcCounters:
    """gRPC counts of all connections since the start."""

    calls_refused: int = 0
    """Calls with an unknown method, a wrong content-type or an unsupported compression."""
    messages_refused: int = 0
    """Messages that were too long, truncated or compressed; each ended its call."""
    responses_refused: int = 0
    """Responses too long to be sent; each ended its call."""
    calls_overflowed: int = 0
    """Calls ended because too many response bytes waited for a peer that did not read."""
    deadlines_exceeded: int = 0
    handler_failures: int = 0
    """Exceptions raised by handlers."""


@dataclass(slots=True)
class ServerCounters:
    """Counts of one server since its start."""

    http2: Http2Counters = field(default_factory=Http2Counters)
    grpc: GrpcCounters = field(default_factory=GrpcCounters)
    connections_opened: int = 0
    connections_refused: int = 0
    """Connections closed at once: the port was full, or TLS did not negotiate ALPN h2."""
    handshakes_failed: int = 0
    """Failed TLS handshakes: no common version, no client certificate, and the like."""
    connections_idle: int = 0
    """Connections shut down because they had no streams for too long."""
    reads_paused: int = 0
    """How often reading paused because the peer did not read the server's control frames."""
    pings_sent: int = 0
    """Keepalive PINGs."""
    connections_timed_out: int = 0
    """Connections closed because of a slow preface or frame, or an unanswered PING."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportStatistics:
    """Current state of a server, and counts since its start."""

    connections: int
    streams: int
    waiting_bytes: int
    """Response bytes that wait for flow-control windows of clients."""
    buffered_bytes: int
    """``waiting_bytes`` and the bytes of incomplete messages."""
    header_cache_bytes: int
    connections_total: int
    streams_total: int
    header_cache_hits: int
    header_cache_misses: int
    refused: Mapping[str, int]
    """Refusals by what the server refused: connection, handshake, stream, header_list, call,
    message, sent_message."""
    ended: Mapping[str, int]
    """Connections that the server ended, by reason: idle, timeout, evicted (to admit another on a
    full port), or the HTTP/2 error code of the client's fault; ENHANCE_YOUR_CALM is a flood."""
    held_back: Mapping[str, int]
    """How often the server waited for a slow client, by event: stream_full (a stream became
    unwritable), read_paused, keepalive_ping."""
    broken_off: Mapping[str, int]
    """Streams that ended early, by reason: client_reset (before any response), client_fault,
    deadline, unread_responses, handler_failure."""
