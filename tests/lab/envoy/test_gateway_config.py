"""The gateway's settings: invalid values, and the parsing of endpoints."""

from typing import Any

import pytest

from epp.lab.envoy import CheckedHosts, Destination, GatewayConfig, Mode
from epp.lab.envoy.addresses import split_endpoint

MODEL_SERVERS = frozenset({CheckedHosts.MODEL_SERVERS})


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        pytest.param("10.0.0.1:8000", ("10.0.0.1", 8000), id="IPv4"),
        pytest.param("[2001:db8::1]:80", ("2001:db8::1", 80), id="IPv6"),
    ],
)
def test_an_endpoint_is_split_into_address_and_port(
    endpoint: str, expected: tuple[str, int]
) -> None:
    assert split_endpoint(endpoint) == expected


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:x", "10.0.0.1:²"),
        *("::1:80", "[10.0.0.1]:80", "[::1]", "model-server:80", "10.0.0.1:80,10.0.0.2:80"),
    ],
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"endpoints: not ip:port"):
        GatewayConfig(endpoints=(endpoint,))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"listen_host": "localhost"}, "listen_host: not an IP address"),
        ({"admin_host": "[::1]"}, "admin_host: not an IP address"),
        ({"epp_host": ""}, "epp_host: empty"),
        ({"epp_port": 0}, "epp_port: not a port"),
        ({"listen_port": -1}, "listen_port: not a port"),
        ({"message_timeout_seconds": 0.0}, "message_timeout_seconds: must be above 0"),
        ({"buffer_limit_bytes": 0}, "buffer_limit_bytes: must be above 0"),
        ({"retries": -1}, "retries: must not be below 0"),
        ({"epp_workers": 0}, "epp_workers: at least 1, and a port for each: 0"),
        ({"epp_workers": 2, "epp_port": 65535}, "epp_workers: at least 1, and a port for each: 2"),
        ({"epp_socket": "/" + 107 * "x"}, "epp_socket: longer than 107 bytes"),
        ({"epp_ca_file": "/ca"}, "epp_ca_file: requires epp_tls"),
        ({"epp_client_key_file": "/key"}, "epp_client_key_file: give both"),
        (
            {"epp_client_certificate_file": "/crt", "epp_client_key_file": "/key"},
            "epp_client_certificate_file: requires epp_tls",
        ),
        ({"fail_open": True}, "fail_open: not supported in lean mode: .* use adaptive mode"),
        (
            {"mode": Mode.FULL_DUPLEX, "fail_open": True},
            "fail_open: not supported in full-duplex mode: .* use adaptive mode",
        ),
        (
            {
                "destination": Destination.ORIGINAL_DST,
                "mode": Mode.ADAPTIVE,
                "fail_open": True,
            },
            "fail_open: not supported with original-dst: .* use override-host",
        ),
        (
            {"mode": Mode.ADAPTIVE, "keep_content_length": True},
            "keep_content_length: not needed in adaptive mode",
        ),
        (
            {"mode": Mode.FULL_DUPLEX, "keep_content_length": True},
            "keep_content_length: not supported in full-duplex mode: .* use lean or adaptive mode",
        ),
        (
            {"health_checks": MODEL_SERVERS, "destination": Destination.ORIGINAL_DST},
            "health_checks: model-servers has no effect with original-dst: .* use override-host",
        ),
        (
            {"health_path": "health", "health_checks": MODEL_SERVERS},
            "health_path: does not begin with /: 'health'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_out_of_range_is_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewayConfig(**{"endpoints": ("10.0.0.1:8000",), **setting})


def test_a_socket_path_may_be_as_long_as_linux_takes_it() -> None:
    path = "/" + 106 * "x"
    assert GatewayConfig(epp_socket=path).epp_socket == path
