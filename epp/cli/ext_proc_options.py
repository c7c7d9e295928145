"""The ext_proc options of ``epp serve`` that depend on more than one field of the settings."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from epp.cli import option_groups as groups
from epp.cli.running import from_flag
from epp.cli.settings_options import read_options
from epp.cli.units import TRUE_OR_FALSE, true_or_false
from epp.ext_proc import ExtProcSettings
from epp.ext_proc.client_headers import headers_to_ignore
from epp.request_control import DEFAULT_SOURCE_HEADERS
from epp.tracing import TracingSettings, tracing_settings

SourceHeader = Annotated[
    list[str] | None,
    groups.limits(
        metavar="NAME",
        help="Header whose last entry identifies the source of a request; sources share memory and"
        " CPU time equally. Repeatable: the first header that a request has is used. By default"
        " x-envoy-external-address, then x-forwarded-for.",
    ),
]
Tracing = Annotated[
    str,
    groups.messages(
        metavar=TRUE_OR_FALSE,
        help="Trace requests with OpenTelemetry: add a `traceparent` to requests without one, and"
        " send spans to the collector of OTEL_EXPORTER_OTLP_ENDPOINT, if it is set. On by default"
        " only with --compat=reference.",
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
_FORM_OF_ERRORS: Final = ("error_body", "retry_after_seconds")


def ext_proc_settings(
    ctx: typer.Context,
    values: Mapping[str, object],
    *,
    source_headers: Sequence[str] | None,
    ignore_client_headers: str,
) -> ExtProcSettings:
    """Return the settings of the options.

    Args:
        ctx: The command's context.
        values: Values of the derived options.
        source_headers: Value of ``--source-header``.
        ignore_client_headers: Value of ``--ignore-client-headers``.

    Raises:
        ValueError: A value is invalid; the message names the flag.
    """
    is_reference = values["compat"] == "reference"
    given = [
        f"--{name.replace('_', '-')}"
        for name in _FORM_OF_ERRORS
        if (source := ctx.get_parameter_source(name)) and source.name != "DEFAULT"
    ]
    if is_reference and given:
        raise ValueError(
            f"--compat=reference decides the form of errors: leave out {' and '.join(given)}"
        )
    return ExtProcSettings(
        **read_options(ExtProcSettings, values),
        source_headers=tuple(each.lower() for each in source_headers or DEFAULT_SOURCE_HEADERS),
        ignored_client_headers=from_flag(
            "--ignore-client-headers", headers_to_ignore, ignore_client_headers
        ),
    )


def traced(
    flag: str, values: Mapping[str, object], environment: Mapping[str, str]
) -> TracingSettings | None:
    """Return how requests are traced; None if they are not.

    Args:
        flag: Value of ``--tracing``; "" for the default.
        values: Values of the derived options.
        environment: The process's environment variables.

    Raises:
        ValueError: The flag or an environment variable is invalid; the message names it.
    """
    is_on = true_or_false("--tracing", flag) if flag else values["compat"] == "reference"
    return tracing_settings(environment) if is_on else None
