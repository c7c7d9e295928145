"""The operator's settings of the ext_proc service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from epp.inputs import Form, Option, Panel
from epp.parsing import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    DEFAULT_MAX_JSON_VALUES,
    DEFAULT_MAX_RATIO,
)
from epp.request_control import DEFAULT_SOURCE_HEADERS

Compat = Literal["none", "reference"]
ErrorBody = Literal["json", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtProcSettings:
    """Limits, and the form of responses; sizes in bytes, times in seconds."""

    compat: Annotated[
        Compat,
        Option(
            "`reference`: errors have the statuses and bodies of the Go EPP.",
            panel=Panel.MESSAGES,
        ),
    ] = "none"
    """``reference`` overrides ``error_body`` and ``retry_after_seconds`` (:mod:`.compat`)."""
    error_body: Annotated[
        ErrorBody,
        Option(
            "Format of error bodies: `json` (an error object of the OpenAI or Anthropic API, by"
            " path) or `text` (one line, as in the Go EPP).",
            panel=Panel.MESSAGES,
        ),
    ] = "json"
    retry_after_seconds: Annotated[
        int,
        Option(
            "Value of `retry-after` in responses with 429 and 503; 0 omits the header.",
            panel=Panel.MESSAGES,
            metavar="SECONDS",
            min=0,
        ),
    ] = 1
    max_body_bytes: Annotated[
        int,
        Option(
            "Maximum length of a request body; longer bodies get 413.",
            panel=Panel.LIMITS,
            form=Form.SIZE,
        ),
    ] = 64 << 20
    max_json_values: Annotated[
        int,
        Option(
            "Maximum number of values, keys and escapes in a JSON body; bodies with more get 400.",
            panel=Panel.LIMITS,
            metavar="N",
            min=1,
        ),
    ] = DEFAULT_MAX_JSON_VALUES
    max_header_bytes: Annotated[
        int,
        Option(
            "Maximum length of the request headers; longer headers get 431.",
            panel=Panel.LIMITS,
            form=Form.SIZE,
        ),
    ] = 128 << 10
    """Applies to the headers in Envoy's message. Envoy's own default limit is 60 KiB."""
    max_streams: Annotated[
        int,
        Option(
            "Maximum number of open requests; further requests get 503. 0 for no limit.",
            panel=Panel.LIMITS,
            metavar="N",
            min=0,
        ),
    ] = 100_000
    """Over all connections; a request takes about 10 KB. Each connection has a limit, too."""
    max_held_bytes: Annotated[
        int,
        Option(
            "Memory for all requests until they are sent on; when it is full, requests get 503.",
            panel=Panel.LIMITS,
            form=Form.SIZE,
        ),
    ] = 512 << 20
    """For bodies received, decoded and rewritten, and the transport's buffers
    (:mod:`epp.ext_proc.held_bytes`). Slow bodies are evicted first."""
    max_decompressed_bytes: Annotated[
        int,
        Option(
            "Maximum length of a compressed request body when it is decoded; longer bodies get"
            " 413.",
            panel=Panel.LIMITS,
            form=Form.SIZE,
        ),
    ] = DEFAULT_MAX_DECOMPRESSED_BYTES
    max_compression_ratio: Annotated[
        int,
        Option(
            "Maximum of decoded bytes for each received byte of a compressed body, beyond 1 MiB;"
            " bodies with more get 413. 0 for no limit.",
            panel=Panel.LIMITS,
            metavar="N",
            min=0,
        ),
    ] = DEFAULT_MAX_RATIO
    source_headers: Sequence[str] = DEFAULT_SOURCE_HEADERS
    """Header names in lower case; the last entry of the first one present is the request's source.
    Memory, and processing time for long bodies, are divided fairly between sources."""
    body_timeout_seconds: Annotated[
        float,
        Option(
            "Time for which a request body may arrive more slowly than --body-min-rate; then 408."
            " 0 for no limit.",
            panel=Panel.LIMITS,
            metavar="SECONDS",
            min=0.0,
        ),
    ] = 30.0
    """Accurate to a second. Where Envoy buffers bodies (BUFFERED), nothing arrives before the end
    of a body, and the limit is 20 times as long."""
    body_min_bytes_per_second: Annotated[
        int,
        Option(
            "Bytes per second below which a request body counts as slow.",
            panel=Panel.LIMITS,
            form=Form.SIZE,
            flag="--body-min-rate",
        ),
    ] = 1024
    stream_idle_timeout_seconds: Annotated[
        float,
        Option(
            "Maximum time without a message from Envoy; then 408 or 504. A response that has"
            " begun is not cut off. 0 for no limit.",
            panel=Panel.LIMITS,
            metavar="SECONDS",
            min=0.0,
        ),
    ] = 0.0
    """Accurate to a second. In modes without the response body no message comes between the headers
    of a response and its end."""
    max_stream_seconds: Annotated[
        float,
        Option(
            "Maximum duration of a stream; then as with --stream-idle-timeout-seconds. 0 for no"
            " limit.",
            panel=Panel.LIMITS,
            metavar="SECONDS",
            min=0.0,
        ),
    ] = 0.0
    """Accurate to a second."""
    destination_list: Annotated[
        bool,
        Option(
            "Send all endpoints that the picker returned; `false` sends the best one only, for"
            " ORIGINAL_DST.",
            panel=Panel.MESSAGES,
            form=Form.BOOLEAN,
        ),
    ] = True
    """Envoy's ORIGINAL_DST clusters answer a list with 503."""
    sample_usage: Annotated[
        float,
        Option(
            "Fraction of responses, 0 to 1, that are read for their token usage in adaptive mode.",
            panel=Panel.MESSAGES,
            metavar="FRACTION",
            min=0.0,
            max=1.0,
        ),
    ] = 0.0
    """Below 1.0 the token metrics are a sample of the requests; at 0.0 they are empty in that mode.
    A sampled response costs a message per chunk. Other modes ignore this setting."""
    keep_control_headers: Annotated[
        bool,
        Option(
            "Forward the client's objective, fairness id, SLO and other control headers, for a"
            " second endpoint picker behind this one.",
            panel=Panel.MESSAGES,
            form=Form.SWITCH,
        ),
    ] = False
    """Headers of stages and of the gateway are still removed."""
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
