"""`epp envoy-config`: what it prints, what it writes, and what it refuses."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from epp.cli import cli
from epp.lab.envoy import validate
from epp.lab.envoy.samples import BOOTSTRAPS, SNIPPETS, rendered

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
    assert document["listeners"][0]["per_connection_buffer_limit_bytes"] == 64 * 2**20
    common = document["clusters"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    assert common["validation_context"]["trusted_ca"] == {"filename": "/ca"}
    assert common["tls_certificates"] == [
        {"certificate_chain": {"filename": "/crt"}, "private_key": {"filename": "/key"}}
    ]


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


@pytest.mark.parametrize("mode", ["adaptive", "full-duplex"])
def test_envoy_gateway_is_patched_in_lean_mode_only(mode: str) -> None:
    documents = list(yaml.safe_load_all(printed("--for", "envoy-gateway", "--mode", mode)))
    assert "EnvoyPatchPolicy" not in [each["kind"] for each in documents]


@pytest.mark.parametrize("product", ["istio", "envoy-gateway"])
def test_objects_for_kubernetes_tell_of_http2_servers(product: str) -> None:
    told = "The Service of the model servers needs `appProtocol: kubernetes.io/h2c`"
    comments = " ".join(
        line.removeprefix("# ")
        for line in printed("--for", product, "--endpoint-protocol", "h2c").splitlines()
        if line.startswith("#")
    )
    assert told in comments


def test_all_samples_are_written(tmp_path: Path) -> None:
    assert printed("--write-all", str(tmp_path)) == ""
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == rendered()
    assert rendered().keys() == BOOTSTRAPS.keys() | SNIPPETS.keys()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((*ENDPOINT, "--fail-open"), "fail_open: lean mode cannot"),
        ((*ENDPOINT, "--buffer-limit", "0"), "--buffer-limit: '0' must be positive"),
        (("--for", "istio", "--epp-tls"), "no snippet for TLS with the endpoint picker"),
        (("--for", "istio", "--epp-socket", "/s"), "no snippet for a unix socket"),
        (
            ("--for", "envoy-gateway", "--destination", "original-dst"),
            "no snippet for original-dst",
        ),
        (("--write-all", "/nonexistent"), "--write-all: there is no folder /nonexistent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused(args: tuple[str, ...], text: str) -> None:
    done = CliRunner().invoke(cli, ["envoy-config", *args])
    assert done.exit_code == 2
    assert text in done.stderr
