"""The ext_proc flags of ``epp serve``: limits, and the format of responses."""

import os
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import typer

from epp.cli.options import finite
from epp.cli.running import from_flag
from epp.cli.units import TRUE_OR_FALSE, size, true_or_false
from epp.ext_proc import ExtProcSettings
from epp.ext_proc.client_headers import headers_to_ignore

SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
"""Environment variable of OpenTelemetry; default 0.1."""

Compat = Annotated[
    Literal["none", "reference"],
    typer.Option(help="reference: errors have the Go EPP's statuses and bodies."),
]
ErrorBody = Annotated[
    Literal["json", "text"] | None,
    typer.Option(
        help="Body of error answers: json (an error object of the OpenAI API, of Anthropic's on its"
        " paths) unless told text (the reference's).",
        show_default=False,
    ),
]
RetryAfterSeconds = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="retry-after of answers with 429 and 503: 1 unless told otherwise, 0 for none.",
        show_default=False,
    ),
]
MaxBodyBytes = Annotated[
    str, typer.Option(help="Longest request body, for example 64MiB; a longer one gets 413.")
]
MaxJsonValues = Annotated[
    int,
    typer.Option(
        min=1, help="Most values in the JSON of a request body; a body with more gets 400."
    ),
]
MaxHeaderBytes = Annotated[
    str, typer.Option(help="Longest request headers, for example 128KiB; longer ones get 431.")
]
MaxStreams = Annotated[
    int,
    typer.Option(min=0, help="Requests open at once; one more gets 503. 0 for any number."),
]
MaxHeldBytes = Annotated[
    str,
    typer.Option(
        help="Memory for requests until they are sent on, for example 512MiB; beyond it 503."
    ),
]
MaxCompressionRatio = Annotated[
    int,
    typer.Option(
        min=0,
        help="Most decoded bytes for each received byte of a compressed body, beyond 1 MiB; a body"
        " with more gets 413. 0 for no limit.",
    ),
]
SourceHeader = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Header whose last entry names the source of a request; memory and turns are shared"
        " between sources. Repeatable: the first one that a request has counts. By default"
        " x-envoy-external-address, x-forwarded-for.",
    ),
]
BodyTimeoutSeconds = Annotated[
    float,
    typer.Option(
        min=0.0,
        callback=finite,
        help="How long a request's body may come more slowly than --body-min-rate; then 408. 0 for"
        " any time.",
    ),
]
BodyMinRate = Annotated[
    str, typer.Option(help="Bytes a second below which a request's body is slow, for example 1KiB.")
]
StreamIdleTimeoutSeconds = Annotated[
    float,
    typer.Option(
        min=0.0,
        callback=finite,
        help="Longest time without a message from Envoy, then 408 or 504; an answer that has begun"
        " goes on. 0 for any time.",
    ),
]
MaxStreamSeconds = Annotated[
    float,
    typer.Option(
        min=0.0, callback=finite, help="The same for the whole time of a stream; 0 for any time."
    ),
]
DestinationList = Annotated[
    str,
    typer.Option(
        metavar=TRUE_OR_FALSE,
        help="Name all endpoints that the picker returned; false for gateways that take one"
        " (ORIGINAL_DST).",
    ),
]
SampleUsage = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of requests whose answers are read for their usage in adaptive mode.",
    ),
]
KeepControlHeaders = Annotated[
    bool,
    typer.Option(
        "--keep-control-headers",
        help="Send objective, fairness id, SLO and other control headers of a client on, for a"
        " second endpoint picker behind this one.",
    ),
]
Tracing = Annotated[
    str,
    typer.Option(
        metavar=TRUE_OR_FALSE,
        help="Give requests without a traceparent one; OTEL_TRACES_SAMPLER_ARG (0.1) is the share"
        " marked as sampled. Off unless --compat=reference is given.",
        show_default=False,
    ),
]
IgnoreClientHeaders = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="Client headers that the endpoint picker ignores, where the gateway cannot remove"
        " them: x-llm-d-inference-fairness-id, ...; all for every one.",
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
