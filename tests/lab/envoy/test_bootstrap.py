"""The bootstrap: Envoy accepts each variant, and each mode sends the documented messages."""

import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.lab.envoy import (
    CheckedHosts,
    Destination,
    EnvoyConfigError,
    GatewayConfig,
    GatewayLimits,
    Mode,
    ModelServerProtocol,
    validate,
)
from epp.lab.envoy.bootstrap import bootstrap as make_bootstrap
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.envoy.names import EPP_CLUSTER, MODEL_SERVERS_CLUSTER, STEERING_HEADERS

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


bootstrap = cache(make_bootstrap)
"""It takes 45 ms, and most tests look at the same few."""


def make_config(**settings: Any) -> GatewayConfig:
    return GatewayConfig(**{"endpoints": ("10.0.0.1:8000",), **settings})


def make_listener(**settings: Any) -> dict[str, Any]:
    """The listener of a gateway, in Envoy's JSON form."""
    found: dict[str, Any] = bootstrap(make_config(**settings))["static_resources"]["listeners"][0]
    return found


def make_manager(**settings: Any) -> dict[str, Any]:
    """The HTTP connection manager of a gateway."""
    found: dict[str, Any] = make_listener(**settings)["filter_chains"][0]["filters"][0]
    manager: dict[str, Any] = found["typed_config"]
    return manager


def make_filter(**settings: Any) -> dict[str, Any]:
    """The ext_proc filter of a gateway."""
    found: dict[str, Any] = make_manager(**settings)["http_filters"][0]["typed_config"]
    return found


def make_routes(**settings: Any) -> list[dict[str, Any]]:
    """The routes of a gateway: small requests, then all others."""
    (host,) = make_manager(**settings)["route_config"]["virtual_hosts"]
    found: list[dict[str, Any]] = host["routes"]
    assert len(found) == 2
    return found


def make_clusters(**settings: Any) -> list[dict[str, Any]]:
    """The clusters of a gateway: the endpoint picker's two and the model servers'."""
    found: list[dict[str, Any]] = bootstrap(make_config(**settings))["static_resources"]["clusters"]
    return found


@pytest.mark.parametrize("mode", Mode)
def test_a_stream_that_an_endpoint_picker_did_not_take_is_tried_with_another(mode: Mode) -> None:
    policy = make_filter(mode=mode)["grpc_service"]["retry_policy"]
    # A stream that an endpoint picker has begun to read is no other's business.
    assert policy["retry_on"] == "connect-failure,refused-stream,reset-before-request"
    assert policy["num_retries"] == 2
    (passed_over,) = policy["retry_host_predicate"]
    assert passed_over["name"] == "envoy.retry_host_predicates.previous_hosts"
    assert int(policy["host_selection_retry_max_attempts"]) > 1


@pytest.mark.parametrize("addresses", ADDRESSES.values(), ids=ADDRESSES.keys())
@pytest.mark.parametrize("destination", Destination)
@pytest.mark.parametrize("mode", Mode)
def test_envoy_accepts_every_variant(
    mode: Mode, destination: Destination, addresses: dict[str, Any]
) -> None:
    validate(render_yaml(GatewayConfig(mode=mode, destination=destination, **addresses)))


def test_envoy_accepts_the_rarer_settings() -> None:
    validate(render_yaml(make_config(retries=0, reuse_port=True)))
    for epp_host in ("10.0.0.9", "epp.example.org"):
        validate(render_yaml(make_config(epp_tls=True, epp_host=epp_host)))


HEALTH = [
    {"epp_host": "epp.example.org", "epp_tls": True},
    {"epp_socket": "/run/epp.sock"},
    {"mode": Mode.ADAPTIVE, "fail_open": True},
    {"endpoint_protocol": ModelServerProtocol.H2C, "health_path": "/ping"},
]


@pytest.mark.parametrize("settings", HEALTH, ids=["by name", "a socket", "fail-open", "h2c"])
def test_envoy_accepts_every_health_check(settings: dict[str, Any]) -> None:
    config = make_config(health_checks=frozenset(CheckedHosts), **settings)
    validate(render_yaml(config))
    *pickers, servers = bootstrap(config)["static_resources"]["clusters"]
    for cluster in (*pickers, servers):
        (check,) = cluster["health_checks"]
        assert check["no_traffic_interval"] == check["interval"]
        assert cluster["ignore_health_on_host_removal"] is True
    for cluster in pickers:
        assert cluster["health_checks"][0]["grpc_health_check"] == {
            "service_name": "envoy.service.ext_proc.v3.ExternalProcessor"
        }
        # By itself an absent value is 0: all requests fail while no check passes.
        (threshold,) = cluster["common_lb_config"].values()
        assert threshold.get("value", 0) == (0 if config.fail_open else 1)
    asked = servers["health_checks"][0]["http_health_check"]
    assert asked["path"] == config.health_path
    assert asked.get("codec_client_type", "HTTP1") == (
        "HTTP2" if config.endpoint_protocol is ModelServerProtocol.H2C else "HTTP1"
    )
    assert servers["common_lb_config"] == {"healthy_panic_threshold": {"value": 1.0}}


def test_envoy_checks_nothing_unless_configured_to() -> None:
    for cluster in make_clusters():
        assert not cluster.keys() & {"health_checks", "common_lb_config"}


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
    ext_proc = make_filter(mode=mode)
    sent = ext_proc["processing_mode"]
    assert sent["request_header_mode"] == sent["response_header_mode"] == "SEND"
    assert sent["request_body_mode"] == request_body
    assert sent["request_trailer_mode"] == request_trailers
    assert sent.get("response_body_mode", "NONE") == response_body  # NONE is the default
    assert sent["response_trailer_mode"] == "SEND"
    assert ext_proc.get("allow_mode_override", False) is override


def test_the_gateway_fails_closed_unless_told_otherwise() -> None:
    assert "failure_mode_allow" not in make_filter(mode=Mode.ADAPTIVE)
    assert make_filter(mode=Mode.ADAPTIVE, fail_open=True)["failure_mode_allow"] is True


@pytest.mark.parametrize("destination", Destination)
def test_metadata_goes_both_ways(destination: Destination) -> None:
    assert make_filter(destination=destination)["metadata_options"] == {
        "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
        "receiving_namespaces": {"untyped": ["envoy.lb"]},
    }


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("destination", Destination)
def test_headers_that_name_servers_go_before_any_filter(
    mode: Mode, destination: Destination
) -> None:
    (early,) = make_manager(mode=mode, destination=destination)["early_header_mutation_extensions"]
    removed = [each["remove"] for each in early["typed_config"]["mutations"]]
    assert removed == list(STEERING_HEADERS)
    assert {
        "x-gateway-destination-endpoint",
        "x-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
    } <= set(removed)


@pytest.mark.parametrize("destination", Destination)
def test_no_limit_bites_on_what_waits_in_the_queue(destination: Destination) -> None:
    for cluster in make_clusters(destination=destination):
        (thresholds,) = cluster["circuit_breakers"]["thresholds"]
        names = {"max_connections", "max_pending_requests", "max_requests", "max_retries"}
        has_budget = cluster["name"] == "model-servers"
        assert thresholds.keys() == (names | {"retry_budget"} if has_budget else names)
        assert {thresholds[name] for name in names} == {1_000_000}
    for route in make_routes(destination=destination):
        assert route["route"]["timeout"] == "0s"
    ext_proc = make_filter(destination=destination)
    assert ext_proc["message_timeout"] == ext_proc["max_message_timeout"] == "1000s"


@pytest.mark.parametrize("mode", Mode)
def test_a_silent_generation_of_20_minutes_after_the_longest_wait_is_not_cut(mode: Mode) -> None:
    manager = make_manager(mode=mode)
    for route in make_routes(mode=mode):
        assert "idle_timeout" not in route["route"], "the connection manager's holds"
    waits = float(make_filter(mode=mode)["message_timeout"][:-1])
    assert float(manager["stream_idle_timeout"][:-1]) > waits + 20 * 60
    assert "max_stream_duration" not in manager["common_http_protocol_options"]
    assert "max_connection_duration" not in manager["common_http_protocol_options"]


@pytest.mark.parametrize("destination", Destination)
@pytest.mark.parametrize("mode", Mode)
def test_one_client_is_bounded_in_time_and_memory(mode: Mode, destination: Destination) -> None:
    settings = {"mode": mode, "destination": destination}
    manager = make_manager(**settings)
    assert manager["request_headers_timeout"] == "10s"
    assert manager["request_timeout"] == manager["stream_flush_timeout"] == "300s"
    assert manager["common_http_protocol_options"]["idle_timeout"] == "620s"
    assert manager["http2_protocol_options"] == {
        "max_concurrent_streams": 1024,
        "initial_stream_window_size": 256 * 1024,
        "initial_connection_window_size": 1024 * 1024,
    }
    assert make_listener(**settings)["per_connection_buffer_limit_bytes"] == 64 * 1024
    *pickers, servers = make_clusters(**settings)
    for picker in pickers:
        (options,) = picker["typed_extension_protocol_options"].values()
        http2 = options["explicit_http_config"]["http2_protocol_options"]
        window = http2.get("initial_stream_window_size")
        assert window == (1024 * 1024 if mode is Mode.FULL_DUPLEX else None)
    assert servers["per_connection_buffer_limit_bytes"] == 64 * 1024


def test_responses_of_servers_that_speak_http2_are_bounded_too() -> None:
    *_, servers = make_clusters(endpoint_protocol=ModelServerProtocol.H2C)
    (options,) = servers["typed_extension_protocol_options"].values()
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    assert http2["initial_stream_window_size"] == 256 * 1024


def test_limits_can_be_set_and_taken_away() -> None:
    limits = GatewayLimits(
        request_seconds=60, max_connections=7, max_heap_bytes=0, stream_window_bytes=65_535
    )
    manager = make_manager(limits=limits)
    assert manager["request_timeout"] == "60s"
    assert manager["http2_protocol_options"]["initial_stream_window_size"] == 65_535
    overload = bootstrap(make_config(limits=limits))["overload_manager"]
    (monitor,) = overload["resource_monitors"]
    assert monitor["typed_config"]["max_active_downstream_connections"] == "7"
    assert "actions" not in overload
    none = GatewayLimits(
        request_headers_seconds=0,
        request_seconds=0,
        stream_idle_seconds=0,
        stream_flush_seconds=0,
        connection_idle_seconds=0,
        max_connections=0,
        max_heap_bytes=0,
    )
    assert "overload_manager" not in bootstrap(make_config(limits=none))
    validate(render_yaml(make_config(limits=none)))


def test_all_requests_may_share_the_connections_to_the_endpoint_picker() -> None:
    config = make_config(limits=GatewayLimits(small_request_bytes=0))
    resources = bootstrap(config)["static_resources"]
    assert [each["name"] for each in resources["clusters"]] == [EPP_CLUSTER, MODEL_SERVERS_CLUSTER]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert "typed_per_filter_config" not in route
    validate(render_yaml(config))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"request_seconds": -1}, "request_seconds: must not be below 0"),
        ({"max_connections": -1}, "max_connections: must not be below 0"),
        ({"small_request_bytes": -1}, "small_request_bytes: must not be below 0"),
        ({"buffer_bytes": 0}, "buffer_bytes: must be above 0"),
        ({"max_streams": 0}, "max_streams: must be above 0"),
        ({"stream_window_bytes": 1024}, "stream_window_bytes: not from 65535"),
        ({"connection_window_bytes": 2**31}, "connection_window_bytes: not from 65535"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_limit_out_of_its_range_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GatewayLimits(**settings)


def test_requests_are_retried_whose_response_has_not_begun() -> None:
    def policy(**settings: Any) -> Any:
        small, others = (each["route"].get("retry_policy") for each in make_routes(**settings))
        assert small == others
        return small

    unsent = "connect-failure,refused-stream,reset-before-request"
    assert policy(retries=3) == {
        "retry_on": "connect-failure,refused-stream,reset",
        "num_retries": 3,
    }
    assert policy(retry_resets=False)["retry_on"] == unsent
    assert policy(destination=Destination.ORIGINAL_DST)["retry_on"] == unsent
    assert policy(retries=0) is None


def test_the_endpoint_picker_is_asked_for_an_endpoint_per_retry() -> None:
    def asked(**settings: Any) -> Any:
        service = make_filter(**settings)["grpc_service"]
        return {each["key"]: each["value"] for each in service.get("initial_metadata", ())}

    assert asked(retries=2) == {"x-gateway-max-destination-endpoints": "3"}
    assert asked(retries=0) == {}
    assert asked(destination=Destination.ORIGINAL_DST) == {}


@pytest.mark.parametrize("mode", Mode)
def test_request_bodies_have_a_limit_of_their_own(mode: Mode) -> None:
    settings = {"mode": mode, "buffer_limit_bytes": 7_000_000}
    for route in make_routes(**settings):
        assert route["request_body_buffer_limit"] == 7_000_000
    assert make_listener(**settings)["per_connection_buffer_limit_bytes"] == 64 * 1024


def test_the_admin_endpoint_is_on_loopback() -> None:
    address = bootstrap(make_config(listen_host="0.0.0.0"))["admin"]["address"]
    assert address["socket_address"]["address"] == "127.0.0.1"


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
def test_the_endpoint_picker_may_be_on_a_unix_socket(tls: bool) -> None:
    path = "/run/epp/ext-proc.sock"
    *pickers, _ = make_clusters(epp_socket=path, epp_tls=tls, epp_host="epp.example.org")
    for picker in pickers:
        assert picker["type"] == "STATIC"
        (host,) = picker["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert host["endpoint"]["address"] == {"pipe": {"path": path}}
        assert ("transport_socket" in picker) is tls
    validate(render_yaml(make_config(epp_socket=path, epp_tls=tls)))


@pytest.mark.parametrize(
    ("more", "addresses"),
    [
        (
            {"epp_socket": "/run/epp.sock"},
            [{"pipe": {"path": f"/run/epp-{worker}.sock"}} for worker in range(3)],
        ),
        (
            {"epp_port": 9102},
            [
                {"socket_address": {"address": "127.0.0.1", "port_value": 9102 + worker}}
                for worker in range(3)
            ],
        ),
    ],
    ids=["sockets", "ports"],
)
def test_each_worker_is_a_host_of_both_clusters(
    more: dict[str, Any], addresses: list[dict[str, Any]]
) -> None:
    *pickers, _ = make_clusters(epp_workers=3, **more)
    assert len(pickers) == 2
    for picker in pickers:
        hosts = picker["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert [host["endpoint"]["address"] for host in hosts] == addresses
    validate(render_yaml(make_config(epp_workers=3, **more)))


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        (ModelServerProtocol.HTTP1, "http_protocol_options"),
        (ModelServerProtocol.H2C, "http2_protocol_options"),
    ],
    ids=lambda value: value.value if isinstance(value, ModelServerProtocol) else "",
)
def test_envoy_speaks_what_the_model_servers_speak(
    protocol: ModelServerProtocol, options: str
) -> None:
    *_, servers = make_clusters(endpoint_protocol=protocol)
    (spoken,) = servers["typed_extension_protocol_options"].values()
    assert list(spoken["explicit_http_config"]) == [options]
    assert "transport_socket" not in servers
    validate(render_yaml(make_config(endpoint_protocol=protocol)))


@pytest.mark.parametrize(
    ("epp_host", "server_name", "san_type"),
    [("10.0.0.9", None, "IP_ADDRESS"), ("epp.example.org", "epp.example.org", "DNS")],
)
def test_tls_with_the_endpoint_picker_offers_http2_and_its_name(
    epp_host: str, server_name: str | None, san_type: str
) -> None:
    def sockets(**settings: Any) -> list[dict[str, Any] | None]:
        return [
            each.get("transport_socket") for each in make_clusters(epp_host=epp_host, **settings)
        ]

    assert sockets() == [None, None, None]
    picker, for_large_requests, model_servers = sockets(epp_tls=True)
    assert for_large_requests == picker
    assert model_servers is None
    assert picker is not None
    context = picker["typed_config"]
    versions = {
        "tls_minimum_protocol_version": "TLSv1_2",
        "tls_maximum_protocol_version": "TLSv1_3",
    }
    common = {"alpn_protocols": ["h2"], "tls_params": versions}
    assert context["common_tls_context"] == common
    assert context.get("sni") == server_name
    picker, *_ = sockets(epp_tls=True, epp_ca_file="/etc/epp/ca.crt")
    assert picker is not None
    assert picker["typed_config"]["common_tls_context"] == common | {
        "validation_context": {
            "trusted_ca": {"filename": "/etc/epp/ca.crt"},
            "match_typed_subject_alt_names": [
                {"san_type": san_type, "matcher": {"exact": epp_host}}
            ],
        }
    }


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": Mode.ADAPTIVE}, "above request_body_buffer_limit with 413"),
        ({"destination": Destination.ORIGINAL_DST}, "one endpoint, not a list (503)"),
        ({}, "Fail-closed"),
        ({"mode": Mode.ADAPTIVE, "fail_open": True}, "Fail-open"),
        ({}, "`epp serve --secure-serving=false`"),
        ({"epp_tls": True}, "does not verify the endpoint picker's certificate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_comments_tell_what_the_choices_mean(settings: dict[str, Any], text: str) -> None:
    lines = render_yaml(make_config(**settings)).splitlines()
    comments = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    assert text in " ".join(comments)
    assert all(len(line) <= 100 for line in comments)


def test_a_bootstrap_with_override_host_needs_an_endpoint() -> None:
    with pytest.raises(ValueError, match="endpoints: override-host needs at least one"):
        bootstrap(make_config(endpoints=()))
    bootstrap(make_config(endpoints=(), destination=Destination.ORIGINAL_DST))


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


def test_what_renders_a_bootstrap_is_installed_without_any_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(each.startswith("envoy-data-plane>=") for each in project["dependencies"])


def test_without_the_package_the_error_names_the_pip_command() -> None:
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
    assert "envoy_data_plane is missing: pip install 'envoy-data-plane==2.*'" in done.stdout
