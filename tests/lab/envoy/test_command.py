"""`epp envoy-config`: its output, its files, and its refusals."""

import asyncio
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from epp.cli import cli, up
from epp.lab.envoy import ClientHeaders, GatewayConfig, HeaderToSet, validate
from epp.lab.envoy.samples import BOOTSTRAPS, SNIPPETS, rendered
from epp.lab.up import UpSettings

ENDPOINT = ("--endpoint", "10.0.0.1:8000")


def printed(*args: str) -> str:
    done = CliRunner().invoke(cli, ["envoy-config", *args])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("--mode", "adaptive", "--fail-open", "--buffer-limit", "64MiB"),
        ("--endpoint-protocol", "h2c"),
        ("--destination", "original-dst"),
        ("--epp-socket", "/run/epp.sock", "--no-epp-tls"),
        ("--keep-content-length", "--access-log", "-", "--host", "::"),
        ("--health-check", "endpoint-picker", "--health-check", "model-servers"),
    ],
    ids=" ".join,
)
def test_envoy_accepts_what_is_printed(args: tuple[str, ...]) -> None:
    validate(printed(*ENDPOINT, *args))


def test_flags_reach_the_bootstrap() -> None:
    text = printed(
        *ENDPOINT,
        *("--mode", "adaptive", "--buffer-limit", "64MiB"),
        *("--epp-ca-file", "/ca", "--epp-client-cert", "/crt", "--epp-client-key", "/key"),
    )
    document = yaml.safe_load(text)["static_resources"]
    manager = document["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        assert route["request_body_buffer_limit"] == 64 * 2**20
    common = document["clusters"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    assert common["validation_context"]["trusted_ca"] == {"filename": "/ca"}
    assert common["tls_certificates"] == [
        {"certificate_chain": {"filename": "/crt"}, "private_key": {"filename": "/key"}}
    ]


@pytest.mark.parametrize(
    ("args", "host"),
    [
        pytest.param((), "0.0.0.0", id="every address by default"),
        pytest.param(("--host", "127.0.0.1"), "127.0.0.1", id="loopback"),
        pytest.param(("--host", "2001:db8::1"), "2001:db8::1", id="IPv6"),
    ],
)
def test_envoy_listens_where_clients_reach_it(args: tuple[str, ...], host: str) -> None:
    text = printed(*ENDPOINT, *args)
    document = yaml.safe_load(text)
    (listener,) = document["static_resources"]["listeners"]
    assert listener["address"]["socket_address"]["address"] == host
    assert document["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    assert ("for local clients only" in text) is (host == "127.0.0.1")


@pytest.mark.parametrize(
    ("args", "remark"),
    [
        pytest.param((), "use --keep-content-length or --mode adaptive", id="lean"),
        pytest.param(("--mode", "full-duplex"), "rejects this (411, 501, 503)", id="duplex"),
        pytest.param(("--mode", "adaptive"), None, id="adaptive"),
        pytest.param(("--keep-content-length",), None, id="with their length"),
    ],
)
def test_a_file_tells_that_bodies_go_in_chunks(args: tuple[str, ...], remark: str | None) -> None:
    lines = printed(*ENDPOINT, *args).splitlines()
    comments = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
    assert ("transfer-encoding: chunked" in comments) is (remark is not None)
    assert (remark or "") in comments


def test_up_listens_on_loopback() -> None:
    assert GatewayConfig().listen_host == "127.0.0.1"


def test_up_hands_limits_and_header_rules_to_its_envoy(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[UpSettings] = []
    monkeypatch.setattr(up, "run_gateway", lambda each, **_: settings.append(each))
    monkeypatch.setattr(up, "run_until_signalled", lambda main, **_: main(asyncio.Event()))
    flags = ("--client-headers", "strip", "--set-header", "x-a=b", "--limit", "max_streams=9")
    done = CliRunner().invoke(cli, ["up", *flags])
    assert done.exit_code == 0, done.output
    assert settings[0].limits.max_streams == 9
    assert settings[0].headers.to_set == (HeaderToSet("x-a", "b"),)
    assert settings[0].headers.client_headers is ClientHeaders.STRIP
    done = CliRunner().invoke(cli, ["up", "--limit", "max_streams=0"])
    assert done.exit_code == 2
    assert "--limit: max_streams: must be above 0" in done.stderr


def test_limits_and_header_rules_reach_the_bootstrap() -> None:
    text = printed(
        *ENDPOINT,
        *("--limit", "request_seconds=2m", "--limit", "max_heap_bytes=1GiB"),
        *("--limit", "max_connections=500", "--trusted-hops", "1"),
        *("--client-headers", "strip", "--keep-header", "X-Session-Token"),
        *("--strip-header", "x-zone", "--set-header", "x-llm-d-inference-objective=chat"),
    )
    validate(text)
    document = yaml.safe_load(text)
    manager = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0][
        "typed_config"
    ]
    assert manager["request_timeout"] == "120s"
    assert manager["xff_num_trusted_hops"] == 1
    (early,) = manager["early_header_mutation_extensions"]
    removed = {each["remove"] for each in early["typed_config"]["mutations"]}
    assert {"x-zone", "x-llm-d-inference-objective", "x-llm-d-inference-fairness-id"} <= removed
    assert "x-session-token" not in removed
    assert [each["name"] for each in manager["http_filters"]] == [
        "envoy.filters.http.header_mutation",
        "envoy.filters.http.ext_proc",
        "envoy.filters.http.router",
    ]
    values = [each["typed_config"] for each in document["overload_manager"]["resource_monitors"]]
    assert values[0]["max_active_downstream_connections"] == "500"
    assert values[1]["max_heap_size_bytes"] == str(2**30)


@pytest.mark.parametrize(
    ("product", "kinds"),
    [
        ("istio", ["EnvoyFilter", "DestinationRule"]),
        (
            "envoy-gateway",
            [
                *("ClientTrafficPolicy", "EnvoyExtensionPolicy", "BackendTrafficPolicy"),
                "EnvoyPatchPolicy",
            ],
        ),
    ],
    ids=["istio", "envoy-gateway"],
)
def test_objects_for_kubernetes_need_no_endpoint(product: str, kinds: list[str]) -> None:
    documents = list(yaml.safe_load_all(printed("--for", product)))
    assert [each["kind"] for each in documents] == kinds


def test_objects_for_kubernetes_have_the_limits_and_the_header_rules() -> None:
    rules = ("--client-headers", "strip", "--set-header", "x-llm-d-inference-objective=chat")
    flags = (*rules, "--trusted-hops", "2", "--limit", "request_seconds=2m")
    client, *_ = yaml.safe_load_all(printed("--for", "envoy-gateway", *flags))
    early = client["spec"]["headers"]["earlyRequestHeaders"]
    assert early["set"] == [{"name": "x-llm-d-inference-objective", "value": "chat"}]
    # Removed first and set then, or the other way round: Envoy Gateway does not say.
    assert "x-llm-d-inference-objective" not in early["remove"]
    assert "x-gateway-inference-objective" in early["remove"]
    assert client["spec"]["timeout"]["http"]["requestReceivedTimeout"] == "120s"
    assert client["spec"]["connection"]["connectionLimit"] == {"value": 20_000}
    assert client["spec"]["clientIPDetection"] == {"xForwardedFor": {"numTrustedHops": 2}}
    envoy_filter, _ = yaml.safe_load_all(printed("--for", "istio", *flags))
    inserted = [
        each["patch"]["value"]["name"]
        for each in envoy_filter["spec"]["configPatches"]
        if each["applyTo"] == "HTTP_FILTER"
    ]
    # Each goes right before the router.
    assert inserted == ["envoy.filters.http.header_mutation", "envoy.filters.http.ext_proc"]


@pytest.mark.parametrize(
    ("flags", "remark"),
    [
        pytest.param(
            ("--mode", "adaptive", "--fail-open"), "requests are routed without it", id="fail-open"
        ),
        pytest.param((), "the check has no effect", id="fail-closed"),
    ],
)
def test_a_file_tells_what_a_failed_check_does(flags: tuple[str, ...], remark: str) -> None:
    text = printed(*ENDPOINT, *flags, "--health-check", "endpoint-picker")
    comments = " ".join(line.removeprefix("# ") for line in text.splitlines() if line[0] == "#")
    assert "`epp serve --health-checking`" in comments
    assert remark in comments


def test_envoy_gateways_objects_have_the_access_log_and_the_health_check() -> None:
    flags = ("--access-log", "-", "--health-check", "endpoint-picker")
    objects = {
        each["kind"]: each["spec"]
        for each in yaml.safe_load_all(printed("--for", "envoy-gateway", *flags))
    }
    (setting,) = objects["EnvoyProxy"]["telemetry"]["accessLog"]["settings"]
    assert setting["sinks"] == [{"type": "File", "file": {"path": "/dev/stdout"}}]
    (ext_proc,) = objects["EnvoyExtensionPolicy"]["extProc"]
    assert ext_proc["backendSettings"]["healthCheck"]["panicThreshold"] == 1


@pytest.mark.parametrize("mode", ["adaptive", "full-duplex"])
def test_envoy_gateway_is_patched_in_lean_mode_only(mode: str) -> None:
    documents = list(yaml.safe_load_all(printed("--for", "envoy-gateway", "--mode", mode)))
    assert "EnvoyPatchPolicy" not in [each["kind"] for each in documents]


@pytest.mark.parametrize("product", ["istio", "envoy-gateway"])
def test_objects_for_kubernetes_tell_of_http2_servers(product: str) -> None:
    remark = "The Service of the model servers needs `appProtocol: kubernetes.io/h2c`"
    comments = " ".join(
        line.removeprefix("# ")
        for line in printed("--for", product, "--endpoint-protocol", "h2c").splitlines()
        if line.startswith("#")
    )
    assert remark in comments


def test_all_samples_are_written(tmp_path: Path) -> None:
    assert printed("--write-all", str(tmp_path)) == ""
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == rendered()
    assert rendered().keys() == BOOTSTRAPS.keys() | SNIPPETS.keys()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((*ENDPOINT, "--fail-open"), "fail_open: not supported in lean mode"),
        ((*ENDPOINT, "--buffer-limit", "0"), "--buffer-limit: '0' must be positive"),
        ((*ENDPOINT, "--host", "gateway.example"), "--host: not an IP address: 'gateway.example'"),
        (
            (*ENDPOINT, "--mode", "adaptive", "--keep-content-length"),
            "keep_content_length: not needed in adaptive mode",
        ),
        (
            ("--for", "envoy-gateway", "--keep-content-length"),
            "does not support keeping the length of request bodies; use --mode adaptive",
        ),
        (
            ("--for", "istio", "--health-check", "model-servers"),
            "does not support health checks of model servers",
        ),
        (
            (*ENDPOINT, "--health-check", "model-servers", "--health-path", "health"),
            "health_path: does not begin with /: 'health'",
        ),
        (("--for", "istio", "--epp-tls"), "does not support TLS with the endpoint picker"),
        (("--for", "istio", "--epp-socket", "/s"), "does not support a unix socket"),
        (
            ("--for", "envoy-gateway", "--destination", "original-dst"),
            "does not support original-dst",
        ),
        ((*ENDPOINT, "--limit", "max_heap=1"), "--limit max_heap=1: did you mean max_heap_bytes?"),
        ((*ENDPOINT, "--limit", "x"), "--limit x: give NAME=VALUE with one of request_headers_s"),
        ((*ENDPOINT, "--limit", "max_streams=0"), "--limit: max_streams: must be above 0"),
        ((*ENDPOINT, "--limit", "request_seconds=5"), "--limit request_seconds=5: '5' is not a d"),
        ((*ENDPOINT, "--set-header", "x-a"), "--set-header: not NAME=VALUE: 'x-a'"),
        ((*ENDPOINT, "--set-header", "x-a= "), "--set-header: not NAME=VALUE"),
        ((*ENDPOINT, "--set-header", "x_a=1"), "--set-header: not a valid header name"),
        ((*ENDPOINT, "--set-header", "X-Forwarded-For=1"), "x-forwarded-for is reserved for"),
        (
            (*ENDPOINT, "--set-header", "x-gateway-destination-endpoint=1.2.3.4:5"),
            "x-gateway-destination-endpoint is reserved for the gateway",
        ),
        ((*ENDPOINT, "--set-header", "x-a=1", "--set-header", "X-A=2"), "x-a is set twice, or s"),
        ((*ENDPOINT, "--strip-header", "a b"), "--strip-header: not a valid header name"),
        ((*ENDPOINT, "--keep-header", "x-session-token"), "a header to keep requires `strip`"),
        (
            (*ENDPOINT, "--client-headers", "strip", "--keep-header", "x-a"),
            "x-a cannot be kept: `strip` does not remove it",
        ),
        (
            ("--for", "envoy-gateway", "--set-header", "x-a=%DOWNSTREAM_PEER_SUBJECT%"),
            "envoy-gateway: x-a: the value must be text, not the format",
        ),
        (("--write-all", "/nonexistent"), "--write-all: there is no folder /nonexistent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused(args: tuple[str, ...], text: str) -> None:
    done = CliRunner().invoke(cli, ["envoy-config", *args])
    assert done.exit_code == 2
    assert text in done.stderr
