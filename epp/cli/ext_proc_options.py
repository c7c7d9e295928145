"""The ext_proc flags of ``epp serve``: limits, and the format of responses."""

import os
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from epp.cli import option_groups as groups
from epp.cli.options import finite
from epp.cli.running import from_flag
from epp.cli.units import TRUE_OR_FALSE, size, true_or_false
from epp.ext_proc import ExtProcSettings
from epp.ext_proc.client_headers import headers_to_ignore

SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
"""Environment variable of OpenTelemetry; default 0.1."""

Compat = Annotated[
    Literal["none", "reference"],
    groups.messages(help="`reference`: errors have the statuses and bodies of the Go EPP."),
]
ErrorBody = Annotated[
    Literal["json", "text"] | None,
    groups.messages(
        help="Format of error bodies: `json` (the default; an error object of the OpenAI or"
        " Anthropic API, by path) or `text` (one line, as in the Go EPP).",
        show_default=False,
    ),
]
RetryAfterSeconds = Annotated[
    int | None,
    groups.messages(
        min=0,
        help="Value of `retry-after` in responses with 429 and 503; 1 by default, 0 omits the"
        " header.",
        show_default=False,
        metavar="SECONDS",
    ),
]
MaxBodyBytes = Annotated[
    str,
    groups.limits(help="Maximum length of a request body; longer bodies get 413.", metavar="SIZE"),
]
MaxJsonValues = Annotated[
    int,
    groups.limits(
        min=1,
        help="Maximum number of values in a JSON body; bodies with more get 400.",
        metavar="N",
    ),
]
MaxHeaderBytes = Annotated[
    str,
    groups.limits(
        help="Maximum length of the request headers; longer headers get 431.", metavar="SIZE"
    ),
]
MaxStreams = Annotated[
    int,
    groups.limits(
        min=0,
        help="Maximum number of open requests; further requests get 503. 0 for no limit.",
        metavar="N",
    ),
]
MaxHeldBytes = Annotated[
    str,
    groups.limits(
        help="Memory for all requests until they are sent on; when it is full, requests get 503.",
        metavar="SIZE",
    ),
]
MaxCompressionRatio = Annotated[
    int,
    groups.limits(
        min=0,
        help="Maximum of decoded bytes for each received byte of a compressed body, beyond 1 MiB;"
        " bodies with more get 413. 0 for no limit.",
        metavar="N",
    ),
]
SourceHeader = Annotated[
    list[str] | None,
    groups.limits(
        metavar="NAME",
        help="Header whose last entry identifies the source of a request; sources share memory and"
        " CPU time equally. Repeatable: the first header that a request has is used. By default"
        " x-envoy-external-address, then x-forwarded-for.",
    ),
]
BodyTimeoutSeconds = Annotated[
    float,
    groups.limits(
        min=0.0,
        callback=finite,
        help="Time for which a request body may arrive more slowly than --body-min-rate; then 408."
        " 0 for no limit.",
        metavar="SECONDS",
    ),
]
BodyMinRate = Annotated[
    str,
    groups.limits(
        help="Bytes per second below which a request body counts as slow.", metavar="SIZE"
    ),
]
StreamIdleTimeoutSeconds = Annotated[
    float,
    groups.limits(
        min=0.0,
        callback=finite,
        help="Maximum time without a message from Envoy; then 408 or 504. A response that has"
        " begun is not cut off. 0 for no limit.",
        metavar="SECONDS",
    ),
]
MaxStreamSeconds = Annotated[
    float,
    groups.limits(
        min=0.0,
        callback=finite,
        help="Maximum duration of a stream; then as with --stream-idle-timeout-seconds. 0 for no"
        " limit.",
        metavar="SECONDS",
    ),
]
DestinationList = Annotated[
    str,
    groups.messages(
        metavar=TRUE_OR_FALSE,
        help="Send all endpoints that the picker returned; `false` sends the best one only, for"
        " ORIGINAL_DST.",
    ),
]
SampleUsage = Annotated[
    float,
    groups.messages(
        min=0.0,
        max=1.0,
        help="Fraction of responses, 0 to 1, that are read for their token usage in adaptive mode.",
        metavar="FRACTION",
    ),
]
KeepControlHeaders = Annotated[
    bool,
    groups.messages(
        "--keep-control-headers",
        help="Forward the client's objective, fairness id, SLO and other control headers, for a"
        " second endpoint picker behind this one.",
    ),
]
Tracing = Annotated[
    str,
    groups.messages(
        metavar=TRUE_OR_FALSE,
        help="Add a `traceparent` to requests without one; the environment variable"
        " OTEL_TRACES_SAMPLER_ARG (0.1) is the sampled fraction. On by default only with"
        " --compat=reference.",
        show_default=False,
    ),
]
IgnoreClientHeaders = Annotated[
    str,
    groups.messages(
        metavar="NAME,...",
        help="Client headers to ignore where the gateway cannot remove them, such as"
        " x-llm-d-inference-fairness-id; `all` for every control header.",
        show_default=False,
    ),
]


def ext_proc_settings(
    *,
    compat: Literal["none", "reference"],
    error_body: Literal["json", "text"] | None,
    retry_after_seconds: int | None,
    max_body_bytes: str,
    max_json_values: int,
    max_header_bytes: str,
    max_streams: int,
    max_held_bytes: str,
    max_compression_ratio: int,
    source_headers: Sequence[str],
    body_timeout_seconds: float,
    body_min_rate: str,
    stream_idle_timeout_seconds: float,
    max_stream_seconds: float,
    destination_list: str,
    sample_usage: float,
    ignore_client_headers: str,
    keep_control_headers: bool,
    tracing: str,
) -> ExtProcSettings:
    """Return the settings of the flags.

    Raises:
        ValueError: A value is invalid; the message names the flag.
    """
    forms = {"--error-body": error_body, "--retry-after-seconds": retry_after_seconds}
    given = [flag for flag, value in forms.items() if value is not None]
    if compat == "reference" and given:
        raise ValueError(
            f"--compat=reference decides the form of errors: leave out {' and '.join(given)}"
        )
    return ExtProcSettings(
        compat=compat,
        error_body="json" if error_body is None else error_body,
        retry_after_seconds=1 if retry_after_seconds is None else retry_after_seconds,
        max_body_bytes=from_flag("--max-body-bytes", size, max_body_bytes),
        max_json_values=max_json_values,
        max_header_bytes=from_flag("--max-header-bytes", size, max_header_bytes),
        max_streams=max_streams,
        max_held_bytes=from_flag("--max-held-bytes", size, max_held_bytes),
        max_compression_ratio=max_compression_ratio,
        source_headers=tuple(name.lower() for name in source_headers),
        body_timeout_seconds=body_timeout_seconds,
        body_min_bytes_per_second=from_flag("--body-min-rate", size, body_min_rate),
        stream_idle_timeout_seconds=stream_idle_timeout_seconds,
        max_stream_seconds=max_stream_seconds,
        destination_list=true_or_false("--destination-list", destination_list),
        sample_usage=sample_usage,
        ignored_client_headers=from_flag(
            "--ignore-client-headers", headers_to_ignore, ignore_client_headers
        ),
        keep_control_headers=keep_control_headers,
        tracing=true_or_false("--tracing", tracing) if tracing else compat == "reference",
        trace_ratio=_trace_ratio(),
    )


def _trace_ratio() -> float:
    """Return the share of new traces that are sampled.

    Raises:
        ValueError: The environment variable is not a number from 0 to 1.
    """
    text = os.environ.get(SAMPLER_ARG, "") or "0.1"
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ValueError(f"{SAMPLER_ARG} is {text!r}; it must be a number from 0 to 1")
    return ratio
