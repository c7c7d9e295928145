"""Flags of the ext_proc port: the resulting settings, and refusals that name the flag."""

from pathlib import Path

import pytest
import typer
from structlog.testing import capture_logs
from typer.testing import CliRunner

from epp.cli import cli
from epp.cli.go_flags import GoFlagsCommand
from epp.cli.settings_options import with_options_of
from epp.cli.transport_options import (
    refuse_for_grpcio,
    socket_file,
    tls_settings,
    transport_settings,
    warn_of_unused,
)
from epp.settings import ServeSettings
from epp.transport import TlsSettings, TransportSettings

MIB = 1 << 20
GCM_128 = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
GCM_256 = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


def test_settings_are_typed_with_their_units() -> None:
    given = ["max_connections=7", "idle_seconds=1m30s", "stream_window_bytes=2MiB"]
    assert transport_settings([*given, "reuse_port=true"], "1MiB") == (
        TransportSettings().with_values(
            {
                "max_connections": 7,
                "idle_seconds": 90.0,
                "stream_window_bytes": 2 * MIB,
                "reuse_port": True,
                "max_message_bytes": MIB,
            }
        )
    )


def test_a_time_limit_that_is_off_by_default_can_be_set_and_left_off() -> None:
    assert transport_settings(["max_stream_seconds=off"], "65MiB") == TransportSettings()
    wanted = TransportSettings().with_values({"max_stream_seconds": 3600.0})
    assert transport_settings(["max_stream_seconds=1h"], "65MiB") == wanted


def test_the_settings_of_the_longest_messages_outdo_the_flags() -> None:
    settings = transport_settings(["max_message_bytes=2MiB"], "1MiB", "3MiB")
    assert settings == TransportSettings().with_values(
        {"max_message_bytes": 2 * MIB, "max_sent_message_bytes": 3 * MIB}
    )
    settings = transport_settings(["max_sent_message_bytes=2MiB"], "1MiB", "3MiB")
    assert settings == TransportSettings().with_values(
        {"max_message_bytes": MIB, "max_sent_message_bytes": 2 * MIB}
    )


@pytest.mark.parametrize(
    ("given", "max_message", "buffered_bytes"),
    [
        pytest.param([], "1MiB", 512 * MIB, id="short messages: the default"),
        pytest.param([], "65MiB", 512 * MIB, id="the default: 1.5 times the longest already"),
        pytest.param([], "", 512 * MIB, id="not given: the default"),
        pytest.param([], "400MiB", 600 * MIB, id="long messages: raised to 1.5 times the longest"),
        pytest.param(["max_message_bytes=500MiB"], "65MiB", 750 * MIB, id="by the setting as well"),
        pytest.param(["max_buffered_bytes=8MiB"], "128MiB", 8 * MIB, id="given: left as it is"),
    ],
)
def test_the_longest_message_has_room_unless_the_room_is_given(
    given: list[str], max_message: str, buffered_bytes: int
) -> None:
    wanted = TransportSettings().with_values({"max_buffered_bytes": buffered_bytes})
    settings = transport_settings(given, max_message)
    assert settings.with_values({"max_message_bytes": 65 * MIB}) == wanted


def test_all_connections_have_room_for_what_one_may_keep() -> None:
    assert transport_settings([], "2GiB").max_total_buffered_bytes == 3 * 1024 * MIB
    with pytest.raises(ValueError, match=r"max_total_buffered_bytes, 1048576, must be at least"):
        transport_settings(["max_total_buffered_bytes=1MiB"], "1MiB")


def test_messages_are_longer_than_the_longest_body() -> None:
    assert transport_settings([], "", "", max_body_bytes=64 * MIB) == TransportSettings()
    assert transport_settings([], "", "", max_body_bytes=MIB) == TransportSettings()
    wanted = TransportSettings().with_values(
        {
            "max_message_bytes": 401 * MIB,
            "max_sent_message_bytes": 401 * MIB,
            "max_buffered_bytes": 601.5 * MIB,
        }
    )
    assert transport_settings([], "", "", max_body_bytes=400 * MIB) == wanted
    given = transport_settings([], "1MiB", "2MiB", max_body_bytes=400 * MIB)
    assert given.messages.max_message_bytes == MIB
    assert given.messages.max_sent_message_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("max_connection=5", "did you mean max_connections?"),
        ("max_conections=5", "did you mean max_connections?"),
        ("idle-seconds=5s", "did you mean idle_seconds?"),
        ("colour=5", "give NAME=VALUE with one of connection_window_bytes, control_frame_budget,"),
        ("max_connections", "give NAME=VALUE with one of connection_window_bytes,"),
        ("max_connections=1.5", "'1.5' is not a whole number"),
        ("max_connections=1k", "'1k' is not a whole number"),
        ("max_connections=-1", "'-1' is not a whole number"),
        ("max_connections=", "'' is not a whole number"),
        ("max_frame_bytes=16384.x", "'16384.x' is not a size such as 10MiB"),
        ("idle_seconds=off", "'off' is not a duration"),
        ("idle_seconds=5", "'5' is not a duration such as 50ms"),
        ("reuse_port=yes", "must be true or false"),
        ("reuse_port=1", "must be true or false"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(given: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^--transport-setting") as caught:
        transport_settings([given], "64MiB")
    assert str(caught.value).startswith(f"--transport-setting {given}: {text}")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("max_connections=0", "max_connections must be positive"),
        ("idle_seconds=0s", "idle_seconds must be positive"),
        ("max_frame_bytes=1KiB", "max_frame_bytes must be 16384 to 16777215"),
        ("max_message_bytes=0", "max_message_bytes must be positive"),
    ],
)
def test_a_setting_out_of_its_range_is_named_with_its_flag(given: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^--transport-setting: ") as caught:
        transport_settings([given], "64MiB")
    assert str(caught.value).startswith(f"--transport-setting: {text}")


@pytest.mark.parametrize(
    ("listen", "path"),
    [
        ("", None),
        ("unix:/run/epp.sock", Path("/run/epp.sock")),
        ("unix:///run/epp.sock", Path("/run/epp.sock")),
        ("unix:epp.sock", Path("epp.sock")),
    ],
)
def test_a_socket_file_is_named_as_for_grpc(listen: str, path: Path | None) -> None:
    assert socket_file(listen) == path


@pytest.mark.parametrize("listen", ["unix:", "unix:@epp", "/run/epp.sock", "0.0.0.0:9002", "9002"])
def test_what_is_no_socket_file_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match=r"^--listen .*give unix:PATH .*--grpc-port$"):
        socket_file(listen)


@pytest.mark.parametrize("text", ["big", "1.x", "-1"])
def test_a_longest_message_that_is_no_size_is_named_with_its_flag(text: str) -> None:
    with pytest.raises(ValueError, match=f"^--grpc-max-recv-msg-size: '{text}' ") as caught:
        transport_settings([], text)
    assert "--transport-setting" not in str(caught.value)
    with pytest.raises(ValueError, match=f"^--grpc-max-send-msg-size: '{text}' "):
        transport_settings([], "", text)


def test_tls_flags_become_settings() -> None:
    ciphers = [f"{GCM_256}, {GCM_128}", GCM_256, ""]
    assert tls_settings("TRUE", "certificates", "VersionTLS13", ciphers) == TlsSettings(
        certificate_directory=Path("certificates"),
        minimum_version="1.3",
        ciphers=(GCM_256, GCM_128, GCM_256),
    )
    assert tls_settings("true", "", "", []) == TlsSettings()


@pytest.mark.parametrize(
    ("version", "ciphers", "text"),
    [
        ("VersionTLS11", [], "--tls-min-version: minimum TLS version VersionTLS11: HTTP/2 needs"),
        ("1.2", [], "--tls-min-version: minimum TLS version '1.2': unknown; give VersionTLS12"),
        ("", ["GCM"], "--tls-cipher-suites: cipher suite 'GCM': unknown; supported are TLS_ECDHE_"),
        (
            "",
            ["TLS_AES_128_GCM_SHA256"],
            "--tls-cipher-suites: cipher suites TLS_AES_128_GCM_SHA256: all are TLS 1.3",
        ),
    ],
)
def test_tls_that_cannot_be_had_is_refused_with_the_flag(
    version: str, ciphers: list[str], text: str
) -> None:
    with pytest.raises(ValueError, match=r"^--tls-") as caught:
        tls_settings("true", "", version, ciphers)
    assert str(caught.value).startswith(text)


def test_authorities_of_clients_become_a_setting() -> None:
    tls = tls_settings("true", "", "", [], "ca.crt")
    assert tls == TlsSettings(client_authorities=Path("ca.crt"))
    assert tls is not None
    assert tls.files == (Path("ca.crt"),)


def test_authorities_of_clients_without_tls_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^--client-ca-file: .* without TLS"):
        tls_settings("false", "", "", [], "ca.crt")


@pytest.mark.parametrize(
    ("args", "seen"),
    [
        ([], ("true", False)),
        (["--enable-cert-reload"], ("true", False)),
        (["--enable-cert-reload", "--health-checking"], ("true", True)),
        (["--enable-cert-reload=false", "--health-checking=true"], ("false", True)),
        (["--enable-cert-reload", "false", "--health-checking=false"], ("true", False)),
        (["--health-checking=T", "--enable-cert-reload=0"], ("false", True)),
    ],
)
def test_flags_may_be_written_as_for_go(args: list[str], seen: tuple[str, bool]) -> None:
    app = typer.Typer()

    @app.command(cls=GoFlagsCommand)
    @with_options_of(ServeSettings)
    def command(**values: object) -> None:
        print((values["reload_certificates"], values["health_checking"]))

    result = CliRunner().invoke(app, args)
    assert result.output.strip() == str(seen)


def test_a_flag_that_is_neither_true_nor_false_is_refused() -> None:
    result = CliRunner().invoke(cli, ["serve", "--health-checking=maybe"])
    assert result.exit_code == 2
    assert result.stderr == "epp: --health-checking must be true or false, not 'maybe'\n"


def test_tls_flags_without_tls_are_ignored_with_a_warning() -> None:
    given = ("certificates", "VersionTLS13", [GCM_128])
    assert tls_settings("false", *given) is None
    with capture_logs() as lines:
        warn_of_unused(*given)
    assert lines == [
        {
            "log_level": "warning",
            "event": "flags were ignored",
            "flags": ["--cert-path", "--tls-min-version", "--tls-cipher-suites"],
            "reason": "--secure-serving=false: plaintext",
        }
    ]


def test_plaintext_alone_is_no_reason_for_a_warning() -> None:
    with capture_logs() as lines:
        warn_of_unused("", "", [])
    assert lines == []


@pytest.mark.parametrize(
    ("given", "tls"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param(["max_message_bytes=1MiB"], None, id="the longest message"),
        pytest.param(["max_sent_message_bytes=65MiB"], None, id="the longest message sent"),
        pytest.param([], TlsSettings(), id="TLS of the default"),
        pytest.param([], TlsSettings(certificate_directory=Path("a")), id="a certificate"),
    ],
)
def test_what_grpcio_can_do_is_not_refused(given: list[str], tls: TlsSettings | None) -> None:
    refuse_for_grpcio(given, tls)
    assert transport_settings(given, "1MiB") == transport_settings([], "1MiB")


@pytest.mark.parametrize(
    ("given", "tls", "flag"),
    [
        (
            ["max_message_bytes=1MiB", "idle_seconds=5s"],
            None,
            "--transport-setting idle_seconds=5s",
        ),
        (["reuse_port=false"], TlsSettings(), "--transport-setting reuse_port=false"),
        ([], TlsSettings(minimum_version="1.3"), "--tls-min-version"),
        ([], TlsSettings(ciphers=(GCM_128,)), "--tls-cipher-suites"),
    ],
)
def test_what_grpcio_cannot_do_is_refused_with_a_way_out(
    given: list[str], tls: TlsSettings | None, flag: str
) -> None:
    with pytest.raises(ValueError, match=r"^--") as caught:
        refuse_for_grpcio(given, tls)
    assert str(caught.value).startswith(f"{flag}: ")
    assert "--transport grpcio" in str(caught.value)
    assert str(caught.value).endswith("; leave it out, or use --transport http2")
