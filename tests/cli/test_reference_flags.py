"""Every flag of the reference's command line, in every form that the reference accepts."""

import os
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import pytest

from epp.cli.reference_flags import unused_variables

from .served import ENDPOINT, Outcome, Serve, serve

__all__ = ["serve"]

UNUSED = "flags of the Go EPP have no effect"
STRAY = "words on the command line were ignored"
CONFIG = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig}"

BOOLEANS: Mapping[str, Callable[[Any], object]] = {
    "--secure-serving": lambda made: made.tls is not None,
    "--enable-cert-reload": attrgetter("reload_certificates"),
    "--health-checking": attrgetter("health_checking"),
    "--disable-endpoint-subset-filter": attrgetter("ignore_subset_hint"),
    "--emit-endpoint-scores": attrgetter("emit_endpoint_scores"),
    "--tracing": lambda settings: settings.tracing is not None,
    "--keep-control-headers": attrgetter("ext_proc.keep_control_headers"),
    "--allow-experimental-plugins": attrgetter("allow_experimental_plugins"),
    "--enable-grpc-stream-metrics": attrgetter("has_stream_metrics"),
    "--deprecated-metrics": attrgetter("has_deprecated_metrics"),
}
"""Those that do something here, and how it shows."""

VALUES: Mapping[str, tuple[str, str, object]] = {
    "--pool-name": ("pool_name", "blue", "blue"),
    "--grpc-port": ("grpc_port", "19002", 19002),
    "--grpc-health-port": ("grpc_health_port", "19003", 19003),
    "--metrics-port": ("metrics_port", "19090", 19090),
    "--drain-timeout": ("drain_delay_seconds", "7s", 7.0),
    "--refresh-metrics-interval": ("refresh_metrics_interval_seconds", ".5s", 0.5),
    "--metrics-staleness-threshold": ("metrics_staleness_seconds", "3s", 3.0),
    "--grpc-max-recv-msg-size": (
        "transport_settings.messages.max_message_bytes",
        "70Mi",
        70 * 2**20,
    ),
    "--grpc-max-send-msg-size": (
        "transport_settings.messages.max_sent_message_bytes",
        "80MiB",
        80 * 2**20,
    ),
    "--tls-min-version": ("tls.minimum_version", "VersionTLS13", "1.3"),
    "--config-text": ("config.source", CONFIG, "--config-text"),
}
"""Those with a value: where it shows, a text, and what that becomes."""

WITHOUT_EFFECT = {
    "--refresh-prometheus-metrics-interval": "5s",
    "--zap-encoder": "json",
    "--zap-stacktrace-level": "panic",
    "--zap-time-encoding": "iso8601",
}
BOOLEANS_WITHOUT_EFFECT = (
    "--enable-pprof",
    "--zap-devel",
)
ASKING_FOR_MORE = {
    "--enable-pprof=true",
}
"""Taken with a warning."""
WITHDRAWN = {
    "--total-queued-requests-metric": "queuedRequestsSpec",
    "--total-running-requests-metric": "runningRequestsSpec",
    "--kv-cache-usage-percentage-metric": "kvUsageSpec",
    "--lora-info-metric": "loraSpec",
    "--cache-info-metric": "cacheInfoSpec",
}
SPELLINGS = {
    **dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "f", "F", "false", "False", "FALSE"), False),
}


def started(outcome: Outcome) -> Any:
    """Return the settings of a command line that was taken."""
    assert outcome.settings is not None, outcome.stderr
    return outcome.settings


@pytest.mark.parametrize("flag", BOOLEANS)
def test_a_boolean_is_bare_or_has_its_value_behind_an_equals_sign(flag: str, serve: Serve) -> None:
    shows = BOOLEANS[flag]
    assert shows(started(serve("serve", *ENDPOINT, flag))) is True
    for text, expected in SPELLINGS.items():
        assert shows(started(serve("serve", *ENDPOINT, f"{flag}={text}"))) is expected


@pytest.mark.parametrize("flag", BOOLEANS)
def test_a_word_behind_a_boolean_is_ignored_with_a_warning(flag: str, serve: Serve) -> None:
    outcome = serve("serve", *ENDPOINT, flag, "false")
    assert BOOLEANS[flag](started(outcome)) is True
    (line,) = outcome.logged(STRAY)
    assert (line["log_level"], line["words"]) == ("warning", ["false"])


@pytest.mark.parametrize("flag", BOOLEANS)
def test_the_last_boolean_wins(flag: str, serve: Serve) -> None:
    shows = BOOLEANS[flag]
    assert shows(started(serve("serve", *ENDPOINT, flag, f"{flag}=0"))) is False
    assert shows(started(serve("serve", *ENDPOINT, f"{flag}=0", flag))) is True


@pytest.mark.parametrize("flag", [*BOOLEANS, *BOOLEANS_WITHOUT_EFFECT])
@pytest.mark.parametrize("text", ["maybe", "yes", "2", ""])
def test_what_is_no_boolean_is_refused(flag: str, text: str, serve: Serve) -> None:
    outcome = serve("serve", *ENDPOINT, f"{flag}={text}")
    assert outcome.status == 2
    assert outcome.stderr.startswith(f"epp: {flag}")
    assert f"must be true or false, not {text!r}" in outcome.stderr


@pytest.mark.parametrize("flag", VALUES)
def test_a_value_stands_behind_an_equals_sign_or_is_the_next_word(flag: str, serve: Serve) -> None:
    where, text, expected = VALUES[flag]
    shows = attrgetter(where)
    assert shows(started(serve("serve", *ENDPOINT, f"{flag}={text}"))) == expected
    outcome = serve("serve", *ENDPOINT, flag, text)
    assert shows(started(outcome)) == expected
    assert not outcome.logged(STRAY)


@pytest.mark.parametrize("flag", sorted(VALUES.keys() - {"--config-text", "--tls-min-version"}))
def test_the_last_value_wins(flag: str, serve: Serve) -> None:
    where, text, expected = VALUES[flag]
    other = {"--pool-name": "red", "--grpc-max-recv-msg-size": "9Gi"}.get(flag)
    first = other or ("9s" if text.endswith("s") else "10GiB" if "i" in text else "1")
    outcome = serve("serve", *ENDPOINT, flag, first, f"{flag}={text}")
    assert attrgetter(where)(started(outcome)) == expected


def test_files_are_named_in_both_forms(serve: Serve, tmp_path: Any) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    for args in ([f"--config-file={file}"], ["--config-file", str(file)]):
        assert started(serve("serve", *ENDPOINT, *args)).config_file == file
    for args in ([f"--cert-path={tmp_path}"], ["--cert-path", str(tmp_path)]):
        assert started(serve("serve", *ENDPOINT, *args)).tls.certificate_directory == tmp_path


@pytest.mark.parametrize("flag", ["--config-file", "--config-text"])
def test_an_empty_configuration_is_the_default_as_the_reference_has_it(
    flag: str, serve: Serve
) -> None:
    for words in ([f"{flag}="], [flag, ""], ["--config-file=", "--config-text="]):
        made = started(serve("serve", *ENDPOINT, *words))
        assert made.config.source == "built-in default"
        assert made.config_file is None


def test_lists_repeat_and_add_up(serve: Serve) -> None:
    first, second = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
    once = started(serve("serve", *ENDPOINT, f"--tls-cipher-suites={first},{second}"))
    twice = started(
        serve("serve", *ENDPOINT, "--tls-cipher-suites", first, f"--tls-cipher-suites={second}")
    )
    assert len(once.tls.ciphers) == 2
    assert once.tls == twice.tls


@pytest.mark.parametrize(
    ("args", "level"),
    [
        ([], "info"),
        (["-v", "4"], "debug"),
        (["-v=4"], "debug"),
        (["-v4"], "debug"),
        (["--v", "4"], "debug"),
        (["--v=4"], "debug"),
        (["-v", "3"], "info"),
        (["-v=0"], "info"),
        (["-v=-1"], "info"),
        (["-v", "5"], "debug"),
        (["-v4", "-v", "2"], "info"),
        (["--v=2", "-v4"], "debug"),
        (["--zap-log-level", "debug"], "info"),
        (["--zap-log-level=info"], "info"),
        (["--zap-log-level=error"], "error"),
        (["--zap-log-level=panic"], "error"),
        (["--zap-log-level=4"], "debug"),
        (["--zap-log-level=1"], "info"),
        (["--zap-log-level=error", "-v4"], "error"),
        (["--log-level=warning", "-v4"], "warning"),
    ],
)
def test_verbosity_is_a_level(args: list[str], level: str, serve: Serve) -> None:
    outcome = serve("serve", *ENDPOINT, *args)
    started(outcome)
    assert outcome.log_level == level


def test_a_level_that_nobody_knows_is_refused(serve: Serve) -> None:
    outcome = serve("serve", *ENDPOINT, "--zap-log-level=loud")
    assert outcome.status == 2
    assert outcome.stderr.startswith("epp: --zap-log-level: give debug, info, warn, error, panic")


@pytest.mark.parametrize("flag", WITHOUT_EFFECT)
def test_a_flag_without_effect_is_taken_and_named(flag: str, serve: Serve) -> None:
    text = WITHOUT_EFFECT[flag]
    for args in ([f"{flag}={text}"], [flag, text], [flag, text, f"{flag}={text}"]):
        outcome = serve("serve", *ENDPOINT, *args)
        started(outcome)
        (line,) = outcome.logged(UNUSED)
        assert list(line["flags"]) == [f"{flag}={text}"]
        assert line["log_level"] == ("warning" if f"{flag}={text}" in ASKING_FOR_MORE else "info")
        assert not outcome.logged(STRAY)


@pytest.mark.parametrize("flag", BOOLEANS_WITHOUT_EFFECT)
def test_a_boolean_without_effect_is_taken_and_named(flag: str, serve: Serve) -> None:
    level = "warning" if f"{flag}=true" in ASKING_FOR_MORE else "info"
    for args, value, expected in (
        ([flag], "true", level),
        ([f"{flag}=1"], "1", level),
        ([f"{flag}=false"], "false", "info"),
        ([f"{flag}=F"], "F", "info"),
        ([flag, f"{flag}=false"], "false", "info"),
        ([f"{flag}=false", flag], "true", level),
    ):
        outcome = serve("serve", *ENDPOINT, *args)
        started(outcome)
        (line,) = outcome.logged(UNUSED)
        assert (list(line["flags"]), line["log_level"]) == ([f"{flag}={value}"], expected)


def test_one_line_names_them_all(serve: Serve) -> None:
    args = ("--zap-devel=false", "--zap-time-encoding", "t", "--zap-encoder", "json")
    (line,) = serve("serve", *ENDPOINT, *args).logged(UNUSED)
    assert list(line["flags"]) == [
        *("--zap-devel=false", "--zap-time-encoding=t", "--zap-encoder=json")
    ]


def test_nothing_is_said_where_nothing_was_asked(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in unused_variables(os.environ):
        monkeypatch.delenv(name)
    outcome = serve("serve", *ENDPOINT)
    assert not outcome.logged(UNUSED)
    assert not outcome.logged(STRAY)


@pytest.mark.parametrize("flag", WITHDRAWN)
def test_a_withdrawn_flag_ends_the_process_with_a_hint(flag: str, serve: Serve) -> None:
    for args in ([f"{flag}=vllm:x"], [flag, "vllm:x"]):
        outcome = serve("serve", *ENDPOINT, *args)
        assert outcome.status == 1
        assert outcome.stderr.startswith(f"epp: {flag} was withdrawn: set engineConfigs[].")
        assert WITHDRAWN[flag] in outcome.stderr


@pytest.mark.parametrize("args", [["--metrics-endpoint-auth"], ["--metrics-endpoint-auth=T"]])
def test_authentication_of_metrics_is_refused_as_nobody_would_check_it(
    args: list[str], serve: Serve
) -> None:
    outcome = serve("serve", *ENDPOINT, *args)
    assert outcome.status == 2
    assert outcome.stderr.startswith("epp: --metrics-endpoint-auth: tokens are checked by the Kub")


def test_metrics_without_authentication_are_taken(serve: Serve) -> None:
    outcome = serve("serve", *ENDPOINT, "--metrics-endpoint-auth=false")
    started(outcome)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--refresh-prometheus-metrics-interval=5"], "'5' is not a duration"),
        (["--zap-encoder"], "--zap-encoder needs a value"),
        (["--grpc-max-recv-msg-size=-1"], "'-1' is not a size"),
        (["--grpc-max-recv-msg-size=9Ei"], "'9Ei' is not a size"),
        (["--drain-timeout=-5s"], "'-5s' must not be negative"),
    ],
)
def test_a_value_that_the_reference_refuses_is_refused(
    args: list[str], text: str, serve: Serve
) -> None:
    outcome = serve("serve", *ENDPOINT, *args)
    assert outcome.status == 2
    assert text in outcome.stderr
    assert outcome.stderr.startswith("epp: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 65 * 2**20), ("1e8", 10**8), ("1Ti", 2**40), ("66.5Mi", 133 * 2**19), ("", 65 * 2**20)],
)
def test_a_longest_message_is_a_quantity_of_kubernetes(
    text: str, expected: int, serve: Serve
) -> None:
    made = started(serve("serve", *ENDPOINT, f"--grpc-max-recv-msg-size={text}"))
    assert made.transport_settings.messages.max_message_bytes == expected


@pytest.mark.parametrize("text", ["-1s", "0", "10ms", "50ms"])
def test_the_shortest_interval_between_scrapes_is_50_ms(text: str, serve: Serve) -> None:
    made = started(serve("serve", *ENDPOINT, f"--refresh-metrics-interval={text}"))
    assert made.refresh_metrics_interval_seconds == 0.05


@pytest.mark.parametrize(
    ("args", "times"),
    [
        ([], (2.0, 0.2, 0.2)),
        (["--metrics-staleness-threshold=5s"], (5.0, 5.0, 0.2)),
        (["--scoring-staleness-threshold=1s"], (2.0, 0.2, 1.0)),
    ],
)
def test_staleness_for_gauges_is_another_than_for_scorers(
    args: list[str], times: tuple[float, float, float], serve: Serve
) -> None:
    made = started(serve("serve", *ENDPOINT, *args))
    assert times == (
        made.metrics_staleness_seconds,
        made.eviction_staleness_seconds,
        made.scoring_staleness_seconds,
    )


@pytest.mark.parametrize(
    ("args", "times"),
    [
        pytest.param([], (0.0, 30.0), id="new ones are refused at once"),
        pytest.param(["--drain-timeout=9s"], (9.0, 30.0), id="as the reference"),
        pytest.param(
            ["--drain-delay-seconds=0", "--drain-timeout=9s"], (0.0, 9.0), id="open ones alone"
        ),
        pytest.param(["--drain-delay-seconds=5", "--drain-timeout=9s"], (5.0, 9.0), id="both"),
        pytest.param(["--drain-delay-seconds=5"], (5.0, 30.0), id="new ones for a while"),
    ],
)
def test_the_drain_timeout_means_new_requests_unless_our_own_flag_does(
    args: list[str], times: tuple[float, float], serve: Serve
) -> None:
    made = started(serve("serve", *ENDPOINT, *args))
    assert (made.drain_delay_seconds, made.drain_timeout_seconds) == times


@pytest.mark.parametrize(
    "args",
    [
        ("--pool-name", "p", *ENDPOINT),
        ("-v", "4", *ENDPOINT, "--pool-name=p"),
        ("-v4", *ENDPOINT, "--pool-name=p"),
        ("serve", "serve", *ENDPOINT, "--pool-name=p"),
    ],
)
def test_flags_need_no_command(args: tuple[str, ...], serve: Serve) -> None:
    assert started(serve(*args)).pool_name == "p"


def test_stray_words_are_ignored_wherever_they_stand(serve: Serve) -> None:
    outcome = serve("serve", "one", *ENDPOINT, "--pool-name", "p", "two", "--", "--three")
    assert started(outcome).pool_name == "p"
    (line,) = outcome.logged(STRAY)
    assert line["words"] == ["one", "two", "--three"]


def test_another_command_behind_serve_is_no_stray_word(serve: Serve) -> None:
    outcome = serve("serve", "plugins", "list")
    assert outcome.status == 2
    assert "docker run --entrypoint epp IMAGE plugins" in outcome.stderr


def test_a_flag_that_nobody_knows_is_refused(serve: Serve) -> None:
    outcome = serve("serve", *ENDPOINT, "--pool-nmae=p")
    assert outcome.status == 2
    assert "--pool-nmae" in outcome.stderr
    assert outcome.settings is None


def test_variables_without_effect_are_named(serve: Serve) -> None:
    env = {"LATENCY_MODEL": "secret", "OTEL_SERVICE_NAME": "epp", "HF_TOKEN": "x"}
    read = {"NAMESPACE": "d", "POD_NAME": "epp-1-2"}
    (line,) = serve("serve", *ENDPOINT, env=env | read).logged(UNUSED)
    assert {"LATENCY_MODEL", "OTEL_SERVICE_NAME"} <= set(line["environment"])
    assert not {"HF_TOKEN", *read} & set(line["environment"])
    assert "secret" not in str(line)


def test_variables_of_opentelemetry_have_an_effect_with_tracing(serve: Serve) -> None:
    env = {"OTEL_SERVICE_NAME": "epp", "OTEL_PROPAGATORS": "b3"}
    (line,) = serve("serve", *ENDPOINT, "--tracing", env=env).logged(UNUSED)
    assert {each for each in line["environment"] if each.startswith("OTEL_")} == {
        "OTEL_PROPAGATORS"
    }


def test_without_arguments_three_lines_say_what_is_needed(serve: Serve) -> None:
    outcome = serve("serve")
    assert outcome.status == 2
    lines = outcome.stderr.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("epp: no model servers: name them with --endpoint HOST:PORT")
    assert "docker run" in lines[2]
