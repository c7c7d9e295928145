"""What an operator may set of the ext_proc boundary."""

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
    """``reference``: errors have the reference's status, drop reason and body, so that the two
    settings below mean nothing (:mod:`epp.ext_proc.compat`)."""
    error_body: ErrorBody = "json"
    """``json``: an OpenAI error object, on the paths of the Anthropic API one of its own; ``text``:
    the reference's ``inference error: …`` line."""
    retry_after_seconds: int = 1
    """Value of ``retry-after`` in answers with 429 and 503; 0 leaves the header out."""
    max_body_bytes: int = 64 << 20
    """Largest request body that is taken in, in bytes; a larger one is answered with 413."""
    max_json_values: int = DEFAULT_MAX_JSON_VALUES
    """Most values that the JSON of a request may have; more is answered with 400."""
    max_header_bytes: int = 128 << 10
    """Most that a request's headers may take in Envoy's message, in bytes; more is answered with
    431. Envoy itself lets 60 KiB pass unless told otherwise."""
    max_streams: int = 100_000
    """Requests open at once over all connections, each a stream of about 10 KB; one more is
    answered with 503. 0 for no limit but that of each connection."""
    max_held_bytes: int = 512 << 20
    """Most bytes that all requests together hold until they are sent on: bodies as they came,
    decoded and rewritten, and what the transport keeps (:mod:`epp.ext_proc.held_bytes`). Beyond it
    slow bodies are evicted, or the request is answered with 503."""
    max_compression_ratio: int = DEFAULT_MAX_RATIO
    """Most decoded bytes of a compressed body for each received byte, beyond the first MiB; a body
    with more is answered with 413. 0 for no limit."""
    source_headers: Sequence[str] = DEFAULT_SOURCE_HEADERS
    """Headers in lower case; the last entry of the first one that a request has names its source.
    Memory and turns of long bodies are shared between sources."""
    body_timeout_seconds: float = 30.0
    """How long a body may come more slowly than ``body_min_bytes_per_second``, to the second; then
    the request is answered with 408. 0 for any time. Where Envoy buffers bodies (BUFFERED), nothing
    of one arrives before its end: there it is 20 times as long."""
    body_min_bytes_per_second: int = 1024
    """Rate below which a body is slow."""
    stream_idle_timeout_seconds: float = 0.0
    """Longest time without a message from Envoy, kept to the second; 0 for any. In modes without
    the response's body nothing comes between its headers and its end."""
    max_stream_seconds: float = 0.0
    """Longest time from the beginning of a stream to its end, kept to the second; 0 for any."""
    destination_list: bool = True
    """Name every endpoint that the picker returned, best first; False names the best alone, for
    gateways that cannot take a list (Envoy's ORIGINAL_DST clusters answer one with 503)."""
    sample_usage: float = 0.0
    """Share of requests, 0.0 to 1.0, whose answers are asked for in adaptive mode, to read their
    usage. With less than 1.0 the token metrics are a sample of the requests, with 0.0 they are
    empty in that mode; each request asked for costs a message per chunk. Other modes ignore it."""
    keep_control_headers: bool = False
    """Send the client's control headers on, for a second endpoint picker behind this one; stages
    and the gateway's own headers are taken off nevertheless."""
    tracing: bool = False
    """Give a request that has no ``traceparent`` one; no spans are recorded here."""
    trace_ratio: float = 0.1
    """Share of these, 0.0 to 1.0, that are marked as sampled."""
    ignored_client_headers: frozenset[str] = frozenset()
    """Client headers that are ignored, by lower-case name (:mod:`epp.ext_proc.client_headers`)."""

    def __post_init__(self) -> None:
        """Refuse what could never work.

        Raises:
            ValueError: One body may be larger than all of them together.
        """
        if self.max_held_bytes < self.max_body_bytes:
            raise ValueError(
                f"--max-held-bytes, {self.max_held_bytes}, must be at least --max-body-bytes,"
                f" {self.max_body_bytes}: the longest body would never be taken in"
            )
