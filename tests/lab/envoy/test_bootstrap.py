"""The bootstrap: Envoy itself accepts each variant, and each mode sends what it promises."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.lab.envoy import Destination, EnvoyConfigError, GatewayConfig, Mode, validate
from epp.lab.envoy.bootstrap import bootstrap, render_yaml

ROOT = Path(__file__).parents[3]

ADDRESSES = {
    "IPv4": {
        "endpoints": ("10.0.0.1:8000", "10.0.0.2:8000"),
        "listen_host": "0.0.0.0",
        "epp_host": "10.0.0.9",
    },
    "IPv6": {
        "endpoints": ("[2001:db8::1]:8000", "[2001:db8::2]:8000"),
        "listen_host": "::",
        "admin_host": "::1",
        "epp_host": "2001:db8::9",
    },
    "both, and the endpoint picker by name": {
        "endpoints": ("10.0.0.1:8000", "[2001:db8::1]:8000"),
        "epp_host": "epp.example.org",
    },
}


def make_config(**settings: Any) -> GatewayConfig:
    return GatewayConfig(**{"endpoints": ("10.0.0.1:8000",), **settings})


def make_filter(config: GatewayConfig) -> dict[str, Any]:
    """The ext_proc filter of a gateway, in Envoy's JSON form."""
    listener = bootstrap(config)["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    found: dict[str, Any] = manager["http_filters"][0]["typed_config"]
    return found


@pytest.mark.parametrize("addresses", ADDRESSES.values(), ids=ADDRESSES.keys())
@pytest.mark.parametrize("destination", Destination)
@pytest.mark.parametrize("mode", Mode)
def test_envoy_accepts_every_variant(
    mode: Mode, destination: Destination, addresses: dict[str, Any]
) -> None:
    validate(render_yaml(GatewayConfig(mode=mode, destination=destination, **addresses)))


def test_envoy_accepts_the_rarer_settings() -> None:
    validate(render_yaml(make_config(retries=0, fail_open=True, reuse_port=True)))
    for epp_host in ("10.0.0.9", "epp.example.org"):
        validate(render_yaml(make_config(epp_tls=True, epp_host=epp_host)))


FULL_DUPLEX = "FULL_DUPLEX_STREAMED"


@pytest.mark.parametrize(
    ("mode", "request_body", "request_trailers", "response_body", "override"),
    [
        (Mode.FULL_DUPLEX, FULL_DUPLEX, "SEND", FULL_DUPLEX, False),
        (Mode.LEAN, FULL_DUPLEX, "SEND", "NONE", False),
        (Mode.ADAPTIVE, "BUFFERED", "SKIP", "NONE", True),
    ],
    ids=lambda value: value.value if isinstance(value, Mode) else "",
)
def test_each_mode_sends_what_it_promises(
    mode: Mode, request_body: str, request_trailers: str, response_body: str, override: bool
) -> None:
    ext_proc = make_filter(make_config(mode=mode))
    sent = ext_proc["processing_mode"]
    assert sent["request_header_mode"] == sent["response_header_mode"] == "SEND"
    assert sent["request_body_mode"] == request_body
    assert sent["request_trailer_mode"] == request_trailers
    assert sent.get("response_body_mode", "NONE") == response_body  # NONE is the default
    assert sent["response_trailer_mode"] == "SEND"
    assert ext_proc.get("allow_mode_override", False) is override


def test_the_gateway_fails_closed_unless_told_otherwise() -> None:
    assert "failure_mode_allow" not in make_filter(make_config())
    assert make_filter(make_config(fail_open=True))["failure_mode_allow"] is True


@pytest.mark.parametrize(
    ("epp_host", "server_name"), [("10.0.0.9", None), ("epp.example.org", "epp.example.org")]
)
def test_tls_with_the_endpoint_picker_offers_http2_and_its_name(
    epp_host: str, server_name: str | None
) -> None:
    def sockets(**settings: Any) -> list[dict[str, Any] | None]:
        config = make_config(epp_host=epp_host, **settings)
        clusters = bootstrap(config)["static_resources"]["clusters"]
        return [each.get("transport_socket") for each in clusters]

    assert sockets() == [None, None]
    picker, model_servers = sockets(epp_tls=True)
    assert model_servers is None
    assert picker is not None
    context = picker["typed_config"]
    assert context["common_tls_context"] == {"alpn_protocols": ["h2"]}
    assert context.get("sni") == server_name


def test_the_yaml_is_the_bootstrap() -> None:
    assert yaml.safe_load(render_yaml(make_config())) == bootstrap(make_config())


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        pytest.param("num_retries:", "num_tries:", "no such field: 'num_tries'", id="a bad field"),
        pytest.param(
            "cluster: model-servers", "cluster: x", "unknown cluster 'x'", id="a bad reference"
        ),
        pytest.param("timeout: 0s", "timeout: soon", "duration", id="a bad duration"),
    ],
)
def test_envoy_says_what_is_wrong_with_a_bootstrap(before: str, after: str, message: str) -> None:
    text = render_yaml(make_config())
    assert before in text
    with pytest.raises(EnvoyConfigError, match=message) as caught:
        validate(text.replace(before, after))
    assert len(str(caught.value)) < 1200, "Envoy repeats the whole bootstrap in some messages"


def test_without_the_extra_the_error_names_the_pip_command() -> None:
    program = """
import sys
sys.modules["envoy_data_plane"] = None
import epp.lab.envoy
try:
    import epp.lab.envoy.bootstrap
except epp.lab.envoy.MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "envoy_data_plane is missing: pip install 'endpoint-picker[gateway]'" in done.stdout
