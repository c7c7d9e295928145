"""Limits on what one client may take of the gateway: time, connections and memory.

This module uses none of Envoy's types, like the `GatewayConfig` that it is a part of.
"""

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MIN_WINDOW_BYTES = 65_535
"""Smallest window that Envoy takes (RFC 9113 §6.9.2: the initial one)."""

MAX_WINDOW_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of Envoy towards its clients; 0 removes a limit of time or of counts.

    Raises:
        ValueError: a number is out of its range.
    """

    request_headers_seconds: float = 10.0
    """From the first byte of a request's headers to their last."""

    request_seconds: float = 300.0
    """From a request's first byte to the last one of its body, however it trickles; 408 after that.
    The wait in the endpoint picker's queue and the answer are not in it. 64 MiB take 300 s at
    1.8 Mbit/s."""

    stream_idle_seconds: float = 3600.0
    """Silence in both directions. A wait in the queue (at most 1000 s) and a generation of 20
    minutes that is not streamed are silent, so it must be well above both."""

    stream_flush_seconds: float = 300.0
    """For a client to read on when its answer is complete and does not fit its window."""

    connection_idle_seconds: float = 620.0
    """A connection without a request. Load balancers in front keep theirs for up to 600 s, and one
    that Envoy closes first costs a request."""

    max_connections: int = 20_000
    """Connections of all clients together; one more is closed at once. Must stay below half of
    Envoy's file descriptors: at the end of those it accepts nobody and spins."""

    max_streams: int = 1024
    """Requests at once on one HTTP/2 connection."""

    max_heap_bytes: int = 4 * GIB
    """Envoy's heap. From 85 % the streams that hold most are reset, from 95 % new requests are
    answered with 503."""

    buffer_bytes: int = 64 * KIB
    """What is buffered of an answer, per connection and direction, before Envoy stops reading."""

    stream_window_bytes: int = 256 * KIB
    """Window of an HTTP/2 stream, and with it what Envoy buffers of its answer."""

    echo_window_bytes: int = MIB
    """Window of a stream to the endpoint picker in full duplex, and with it what Envoy buffers of
    an answer that came back from there. Request bodies come back the same way: with less than a
    usual body they stay in the endpoint picker, whose own budget they fill."""

    connection_window_bytes: int = MIB
    """Window of an HTTP/2 connection of a client."""

    small_request_bytes: int = 64 * KIB
    """Requests with a longer body, a compressed one or one of unknown length go to the endpoint
    picker over connections of their own. Envoy opens one per worker thread and cluster, and small
    requests would wait there behind megabytes. 0 sends all requests over the same ones."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_window_bytes"):
                if not MIN_WINDOW_BYTES <= value <= MAX_WINDOW_BYTES:
                    raise ValueError(
                        f"{each.name}: not from {MIN_WINDOW_BYTES} to {MAX_WINDOW_BYTES}: {value}"
                    )
            elif each.name in {"max_streams", "buffer_bytes"}:
                if value < 1:
                    raise ValueError(f"{each.name}: must be above 0: {value}")
            elif value < 0:
                raise ValueError(f"{each.name}: must not be below 0: {value}")
