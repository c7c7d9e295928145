"""The operator's settings of the ext_proc service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from epp.parsing import DEFAULT_MAX_JSON_VALUES, DEFAULT_MAX_RATIO
from epp.request_control import DEFAULT_SOURCE_HEADERS

Compat = Literal["none", "reference"]
ErrorBody = Literal["json", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtProcSettings:
    """Limits, and the form of the answers."""

    compat: Compat = "none"
    """``reference``: errors have the reference's status, drop reason and body, and the two settings
    below have no effect (:mod:`epp.ext_proc.compat`)."""
    error_body: ErrorBody = "json"
    """``json``: an OpenAI error object, or Anthropic's on the paths of the Anthropic API; ``text``:
    the reference's ``inference error: …`` line."""
    retry_after_seconds: int = 1
    """Value of ``retry-after`` in responses with 429 and 503; 0 omits the header."""
    max_body_bytes: int = 64 << 20
    """Largest request body in bytes; a larger one is answered with 413."""
    max_json_values: int = DEFAULT_MAX_JSON_VALUES
    """Largest number of JSON values in a request; more are answered with 400."""
    max_header_bytes: int = 128 << 10
    """Largest size of a request's headers in Envoy's message, in bytes; more is answered with 431.
    Envoy's own default limit is 60 KiB."""
    max_streams: int = 100_000
    """Limit of open requests over all connections, each a stream of about 10 KB; one more is
    answered with 503. 0 leaves only the limit of each connection."""
    max_held_bytes: int = 512 << 20
    """Limit of the bytes that all requests together hold until they are sent on: bodies received,
    decoded and rewritten, and the transport's buffers (:mod:`epp.ext_proc.held_bytes`). Beyond it
    slow bodies are evicted, or the request is answered with 503."""
    max_compression_ratio: int = DEFAULT_MAX_RATIO
    """Largest ratio of decoded to received bytes of a compressed body, beyond the first MiB; a body
    above it is answered with 413. 0 for no limit."""
    source_headers: Sequence[str] = DEFAULT_SOURCE_HEADERS
    """Header names in lower case; the last entry of the first one present is the request's source.
    Memory, and processing time for long bodies, are divided fairly between sources."""
    body_timeout_seconds: float = 30.0
    """How long an upload may be slower than ``body_min_bytes_per_second``, to the second; then the
    request is answered with 408. 0 for no limit. Where Envoy buffers bodies (BUFFERED), nothing
    arrives before the end of a body, and the limit is 20 times as long."""
    body_min_bytes_per_second: int = 1024
    """Rate below which an upload is slow."""
    stream_idle_timeout_seconds: float = 0.0
    """Longest time without a message from Envoy, to the second; 0 for no limit. In modes without
    the response body no message comes between the response's headers and its end."""
    max_stream_seconds: float = 0.0
    """Longest time from the start of a stream to its end, to the second; 0 for no limit."""
    destination_list: bool = True
    """Name every endpoint that the picker returned, best first. False names only the best one, for
    gateways that do not support a list (Envoy's ORIGINAL_DST clusters answer it with 503)."""
    sample_usage: float = 0.0
    """Share of requests, 0.0 to 1.0, whose response body is requested in adaptive mode, to read its
    token usage. Below 1.0 the token metrics are a sample of the requests, at 0.0 they are empty
    in that mode; each sampled response costs a message per chunk. Other modes ignore this."""
    keep_control_headers: bool = False
    """Keep the client's control headers for a second endpoint picker behind this one; headers of
    stages and of the gateway are removed nevertheless."""
    tracing: bool = False
    """Add a ``traceparent`` to requests without one; no spans are recorded here."""
    trace_ratio: float = 0.1
    """Share of the added ones to mark as sampled, 0.0 to 1.0."""
    ignored_client_headers: frozenset[str] = frozenset()
    """Client headers to ignore, by lower-case name (:mod:`epp.ext_proc.client_headers`)."""

    def __post_init__(self) -> None:
        """Check that the limits fit together.

        Raises:
            ValueError: ``max_held_bytes`` is less than ``max_body_bytes``.
        """
        if self.max_held_bytes < self.max_body_bytes:
            raise ValueError(
                f"--max-held-bytes, {self.max_held_bytes}, must be at least --max-body-bytes,"
                f" {self.max_body_bytes}: the longest body would not fit"
            )
