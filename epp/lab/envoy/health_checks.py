"""Envoy's active health checks of the endpoint picker and of the model servers.

A host that fails its check gets no requests while another host passes. If no host passes, Envoy
uses all of them, so a false alarm (a port that does not answer checks, a busy process) costs no
request. Only a gateway that fails open uses no endpoint picker if all of them fail their checks.
"""

from epp.health import EXT_PROC_SERVICE
from epp.lab.envoy._data_plane import cluster, core, envoy_type, seconds
from epp.lab.envoy.gateway_config import GatewayConfig, ModelServerProtocol

INTERVAL_SECONDS = 2.0
TIMEOUT_SECONDS = 2.0

UNHEALTHY_THRESHOLD = 2
"""Consecutive checks without a response. A host that answers NOT_SERVING or 503 is out at once."""

PANIC_PERCENT = 1
"""Below this share of healthy hosts Envoy uses all hosts. With its default of 50 % the followers of
three endpoint pickers that elect a leader would get requests."""


def panic_percent(config: GatewayConfig) -> int:
    """Return the share of healthy endpoint pickers below which all are used.

    0 for a gateway that fails open: it routes round robin instead of waiting for one that hangs.
    """
    return 0 if config.fail_open else PANIC_PERCENT


def check_endpoint_picker(picker: cluster.Cluster, config: GatewayConfig) -> None:
    """Check the hosts of a cluster of the endpoint picker (`epp serve --health-checking`)."""
    check = _check()
    check.grpc_health_check = core.HealthCheckGrpcHealthCheck(service_name=EXT_PROC_SERVICE)
    _add(check, picker, panic_percent(config))


def check_model_servers(servers: cluster.Cluster, config: GatewayConfig) -> None:
    """Check the hosts of the model servers' cluster with GET requests."""
    http2 = config.endpoint_protocol is ModelServerProtocol.H2C
    codec = envoy_type.CodecClientType.HTTP2 if http2 else envoy_type.CodecClientType.HTTP1
    check = _check()
    check.http_health_check = core.HealthCheckHttpHealthCheck(
        path=config.health_path, codec_client_type=codec
    )
    _add(check, servers, PANIC_PERCENT)


def _check() -> core.HealthCheck:
    return core.HealthCheck(
        timeout=seconds(TIMEOUT_SECONDS),
        interval=seconds(INTERVAL_SECONDS),
        # Without requests Envoy checks once a minute by default, so results would be up to a
        # minute old for the first request.
        no_traffic_interval=seconds(INTERVAL_SECONDS),
        unhealthy_threshold=UNHEALTHY_THRESHOLD,
        healthy_threshold=1,
    )


def _add(check: core.HealthCheck, checked: cluster.Cluster, percent: int) -> None:
    checked.health_checks = [check]
    checked.common_lb_config = cluster.ClusterCommonLbConfig(
        healthy_panic_threshold=envoy_type.Percent(value=percent)
    )
    # An address that has left DNS would otherwise stay in use while it passes.
    checked.ignore_health_on_host_removal = True
