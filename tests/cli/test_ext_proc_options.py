"""Options of the ext_proc boundary: their settings, and invalid values."""

import pytest
import typer
from typer.testing import CliRunner

from epp.cli import cli
from epp.cli.ext_proc_options import (
    IgnoreClientHeaders,
    SourceHeader,
    ext_proc_settings,
    traced,
)
from epp.cli.settings_options import with_options_of
from epp.ext_proc import ExtProcSettings


def settings_of(*arguments: str) -> ExtProcSettings:
    """Return the settings of a command line."""
    app, found = typer.Typer(), list[ExtProcSettings]()

    @app.command()
    @with_options_of(ExtProcSettings)
    def command(
        ctx: typer.Context,
        source_header: SourceHeader = None,
        ignore_client_headers: IgnoreClientHeaders = "",
        **values: object,
    ) -> None:
        settings = ext_proc_settings(
            ctx,
            values,
            source_headers=source_header,
            ignore_client_headers=ignore_client_headers,
        )
        found.append(settings)

    CliRunner().invoke(app, arguments, catch_exceptions=False)
    return found[0]


def test_defaults_of_the_options_are_those_of_the_settings() -> None:
    assert settings_of() == ExtProcSettings()


def test_each_option_has_its_setting() -> None:
    given = settings_of(
        *("--error-body", "text"),
        *("--retry-after-seconds", "5"),
        *("--max-body-bytes", "1MiB"),
        *("--max-decompressed-bytes", "2MB"),
        *("--max-json-values", "1000"),
        *("--max-header-bytes", "8KiB"),
        *("--max-streams", "5"),
        *("--max-held-bytes", "16MiB"),
        *("--max-compression-ratio", "10"),
        *("--source-header", "X-Real-IP"),
        *("--body-timeout-seconds", "5"),
        *("--body-min-rate", "100KiB"),
        *("--stream-idle-timeout-seconds", "600"),
        *("--max-stream-seconds", "3600.5"),
        *("--destination-list", "false"),
        *("--sample-usage", "0.25"),
        *("--ignore-client-headers", "x-session-token"),
        "--keep-control-headers",
    )
    assert given == ExtProcSettings(
        error_body="text",
        retry_after_seconds=5,
        max_body_bytes=1 << 20,
        max_decompressed_bytes=2_000_000,
        max_json_values=1000,
        max_header_bytes=8 << 10,
        max_streams=5,
        max_held_bytes=16 << 20,
        max_compression_ratio=10,
        source_headers=("x-real-ip",),
        body_timeout_seconds=5.0,
        body_min_bytes_per_second=100 << 10,
        stream_idle_timeout_seconds=600.0,
        max_stream_seconds=3600.5,
        destination_list=False,
        sample_usage=0.25,
        ignored_client_headers=frozenset({"x-session-token"}),
        keep_control_headers=True,
    )


@pytest.mark.parametrize(
    ("compat", "tracing", "is_on"),
    [
        ("none", "", False),
        ("reference", "", True),
        ("reference", "false", False),
        ("none", "true", True),
    ],
)
def test_tracing_is_on_by_default_only_with_compat_reference(
    compat: str, tracing: str, is_on: bool
) -> None:
    assert (traced(tracing, {"compat": compat}, {}) is not None) is is_on


def test_variables_of_opentelemetry_count_with_tracing_alone() -> None:
    invalid = {"OTEL_TRACES_SAMPLER_ARG": "half"}
    assert traced("false", {"compat": "none"}, invalid) is None
    with pytest.raises(ValueError, match="OTEL_TRACES_SAMPLER_ARG is 'half'"):
        traced("true", {"compat": "none"}, invalid)


def test_compat_reference_excludes_options_for_the_form_of_errors() -> None:
    assert settings_of("--compat", "reference").compat == "reference"
    for flag, value in (("--error-body", "json"), ("--retry-after-seconds", "0")):
        with pytest.raises(ValueError, match=f"leave out {flag}$"):
            settings_of("--compat", "reference", flag, value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--max-body-bytes", "0"], "--max-body-bytes", id="no body at all"),
        pytest.param(["--ignore-client-headers", "x-mine"], "'x-mine'", id="not read for it"),
        pytest.param(["--max-json-values", "0"], "--max-json-values", id="no value at all"),
        pytest.param(["--max-header-bytes", "many"], "--max-header-bytes", id="no size"),
        pytest.param(["--destination-list=maybe"], "--destination-list", id="neither"),
        pytest.param(["--sample-usage", "1.5"], "--sample-usage", id="more than all"),
        pytest.param(["--retry-after-seconds", "-1"], "--retry-after-seconds", id="the past"),
        pytest.param(["--max-streams", "-1"], "--max-streams", id="less than no stream"),
        pytest.param(["--max-held-bytes", "0"], "--max-held-bytes", id="no memory at all"),
        pytest.param(
            ["--max-held-bytes", "1MiB"], "at least --max-body-bytes", id="less than one body"
        ),
        pytest.param(["--stream-idle-timeout-seconds", "-1"], "--stream-idle", id="a time ago"),
        pytest.param(["--max-stream-seconds", "long"], "--max-stream-seconds", id="no number"),
        pytest.param(["--max-stream-seconds", "inf"], "not a number of seconds", id="for ever"),
        pytest.param(["--drain-delay-seconds", "nan"], "--drain-delay-seconds", id="nan seconds"),
        pytest.param(["--drain-delay-seconds", "-1"], "--drain-delay-seconds", id="before it"),
        pytest.param(["--error-body", "xml"], "--error-body", id="an unknown form"),
        pytest.param(["--compat", "v1"], "--compat", id="an unknown EPP"),
        pytest.param(
            ["--compat=reference", "--error-body=text"], "--error-body", id="two forms at once"
        ),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["serve", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert said in done.output
