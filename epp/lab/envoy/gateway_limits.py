"""Limits that protect the gateway from its clients: time, connections and memory.

Part of `GatewayConfig`; like it, this module does not import Envoy's types.
"""

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MIN_WINDOW_BYTES = 65_535
"""Minimum window in Envoy; the initial window of RFC 9113 §6.9.2."""

MAX_WINDOW_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of Envoy for its clients; 0 disables a timeout or a maximum count.

    Raises:
        ValueError: A number is out of range.
    """

    request_headers_seconds: float = 10.0
    """Maximum time from the first to the last byte of the request headers."""

    request_seconds: float = 300.0
    """Maximum time from the first byte of a request to the last byte of its body, after which Envoy
    answers 408; excludes the queue of the endpoint picker and the response. 64 MiB take 300 s at
    1.8 Mbit/s."""

    stream_idle_seconds: float = 3600.0
    """Maximum time without data in either direction. Must be well above the time in the queue (at
    most 1000 s) and the time of a non-streaming generation (20 minutes)."""

    stream_flush_seconds: float = 300.0
    """Maximum time for a client to read the rest of a complete response that exceeds its window."""

    connection_idle_seconds: float = 620.0
    """Maximum time of a connection without a request. Load balancers in front of Envoy keep idle
    connections for up to 600 s; if Envoy closes one earlier, a request can fail."""

    max_connections: int = 20_000
    """Maximum number of client connections; Envoy closes further ones at once. Must be below half
    of Envoy's file descriptors: without a free one, Envoy accepts no connection and busy-loops."""

    max_streams: int = 1024
    """Maximum number of concurrent requests per HTTP/2 connection."""

    max_heap_bytes: int = 4 * GIB
    """Maximum heap of Envoy. Above 85 % Envoy resets the streams that hold the most memory, above
    95 % it answers new requests with 503."""

    buffer_bytes: int = 64 * KIB
    """Response bytes that Envoy buffers per connection and direction before it stops reading."""

    stream_window_bytes: int = 256 * KIB
    """Window of an HTTP/2 stream, and so the number of response bytes that Envoy buffers."""

    echo_window_bytes: int = MIB
    """Window of an ext_proc stream in full-duplex mode, and so the number of response bytes from
    the endpoint picker that Envoy buffers. Request bodies come back the same way: if the window is
    smaller than a usual body, the rest stays in the endpoint picker and uses its memory budget."""

    connection_window_bytes: int = MIB
    """Window of a client's HTTP/2 connection."""

    small_request_bytes: int = 64 * KIB
    """Requests with a longer body, a compressed one or one of unknown length use separate
    connections to the endpoint picker. Envoy opens one connection per worker thread and cluster,
    on which small requests would wait behind large ones. 0: all requests share connections."""

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
