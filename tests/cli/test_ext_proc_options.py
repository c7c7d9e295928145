"""Flags of the ext_proc boundary: what they come to, and what is refused by name."""

import pytest
from typer.testing import CliRunner

from epp.cli import cli
from epp.cli.ext_proc_options import ext_proc_settings
from epp.ext_proc import ExtProcSettings

DEFAULTS = {
    "compat": "none",
    "error_body": None,
    "retry_after_seconds": None,
    "max_body_bytes": "64MiB",
    "max_json_values": 4 << 20,
    "max_header_bytes": "128KiB",
    "max_streams": 100_000,
    "max_held_bytes": "512MiB",
    "max_compression_ratio": 100,
    "source_headers": ["x-envoy-external-address", "x-forwarded-for"],
    "body_timeout_seconds": 30.0,
    "body_min_rate": "1KiB",
    "stream_idle_timeout_seconds": 0.0,
    "max_stream_seconds": 0.0,
    "destination_list": "true",
    "sample_usage": 0.0,
    "ignore_client_headers": "",
    "keep_control_headers": False,
    "tracing": "",
}


def test_what_the_flags_say_by_default_are_the_defaults() -> None:
    assert ext_proc_settings(**DEFAULTS) == ExtProcSettings()  # type: ignore[arg-type] # by name


def test_each_flag_has_its_setting() -> None:
    given = ext_proc_settings(
        compat="none",
        error_body="text",
        retry_after_seconds=5,
        max_body_bytes="1MiB",
        max_json_values=1000,
        max_header_bytes="8KiB",
        max_streams=5,
        max_held_bytes="16MiB",
        max_compression_ratio=10,
        source_headers=["X-Real-IP"],
        body_timeout_seconds=5.0,
        body_min_rate="100KiB",
        stream_idle_timeout_seconds=600.0,
        max_stream_seconds=3600.5,
        destination_list="false",
        sample_usage=0.25,
        ignore_client_headers="x-session-token",
        keep_control_headers=True,
        tracing="true",
    )
    assert given == ExtProcSettings(
        error_body="text",
        retry_after_seconds=5,
        max_body_bytes=1 << 20,
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
        tracing=True,
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
def test_traces_begin_here_as_in_the_reference_or_when_asked(
    compat: str, tracing: str, is_on: bool
) -> None:
    asked: dict[str, object] = {**DEFAULTS, "compat": compat, "tracing": tracing}
    assert ext_proc_settings(**asked).tracing is is_on  # type: ignore[arg-type] # by name


def test_the_share_of_sampled_traces_is_opentelemetrys(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, ratio in (("0.5", 0.5), ("", 0.1), ("1", 1.0)):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", text)
        assert ext_proc_settings(**DEFAULTS).trace_ratio == ratio  # type: ignore[arg-type]
    for text in ("half", "1.5", "nan"):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", text)
        with pytest.raises(ValueError, match="OTEL_TRACES_SAMPLER_ARG is"):
            ext_proc_settings(**DEFAULTS)  # type: ignore[arg-type] # by name


def test_the_reference_decides_the_form_of_errors_alone() -> None:
    asked: dict[str, object] = {**DEFAULTS, "compat": "reference"}
    assert ext_proc_settings(**asked).compat == "reference"  # type: ignore[arg-type] # by name
    for flag, value in (("error_body", "json"), ("retry_after_seconds", 0)):
        with pytest.raises(ValueError, match=f"leave out --{flag.replace('_', '-')}$"):
            ext_proc_settings(**{**asked, flag: value})  # type: ignore[arg-type] # by name


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
