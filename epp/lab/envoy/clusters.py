"""The clusters of the gateway: the endpoint picker and the model servers."""

from pathlib import Path

from epp.inputs import of_worker
from epp.lab.envoy._data_plane import (
    PackedMessage,
    cluster,
    core,
    endpoint,
    envoy_type,
    extension,
    matcher,
    metadata,
    override_host,
    round_robin,
    seconds,
    socket_address,
    socket_path,
    tls,
    upstream_http,
)
from epp.lab.envoy.addresses import parse_ip, split_endpoint
from epp.lab.envoy.gateway_config import (
    CheckedHosts,
    Destination,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
)
from epp.lab.envoy.health_checks import check_endpoint_picker, check_model_servers
from epp.lab.envoy.names import (
    DESTINATION_HEADER,
    DESTINATION_NAMESPACE,
    EPP_CLUSTER,
    EPP_LARGE_REQUESTS_CLUSTER,
    MODEL_SERVERS_CLUSTER,
    SERVED_KEY,
)

CIRCUIT_BREAKER_LIMIT = 1_000_000
"""In effect unlimited: requests wait in the queue of the endpoint picker, which has limits."""

RETRY_BUDGET_PERCENT = 100.0
"""Maximum number of retries at model servers at once, in percent of their open requests."""
MIN_RETRIES = 20
"""This many retries at once are always allowed."""

KEEPALIVE_INTERVAL_SECONDS = 30.0

KEEPALIVE_TIMEOUT_SECONDS = 20.0
"""Long, so that a short stall of the endpoint picker does not reset all its streams."""

HTTP_OPTIONS_KEY = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def epp_clusters(config: GatewayConfig) -> list[cluster.Cluster]:
    """Return the endpoint picker's cluster, and a second one if large requests use their own."""
    names = [EPP_CLUSTER]
    if config.limits.small_request_bytes:
        names.append(EPP_LARGE_REQUESTS_CLUSTER)
    return [epp_cluster(config, name) for name in names]


def epp_cluster(config: GatewayConfig, name: str = EPP_CLUSTER) -> cluster.Cluster:
    """Return a cluster of the endpoint picker: HTTP/2, with DNS unless the host is an address."""
    is_ip = parse_ip(config.epp_host) is not None
    discovery = cluster.ClusterDiscoveryType
    http2 = core.Http2ProtocolOptions(
        connection_keepalive=core.KeepaliveSettings(
            interval=seconds(KEEPALIVE_INTERVAL_SECONDS),
            timeout=seconds(KEEPALIVE_TIMEOUT_SECONDS),
        )
    )
    if config.mode is Mode.FULL_DUPLEX:
        # The responses come back through these streams; by default Envoy would buffer up to 16 MiB
        # of each for a slow client.
        http2.initial_stream_window_size = config.limits.echo_window_bytes
    options = upstream_http.HttpProtocolOptions(
        explicit_http_config=upstream_http.HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=http2
        )
    )
    picker = cluster.Cluster(
        name=name,
        type=discovery.STATIC if is_ip or config.epp_socket else discovery.STRICT_DNS,
        connect_timeout=seconds(config.epp_connect_timeout_seconds),
        circuit_breakers=_circuit_breakers(),
        typed_extension_protocol_options={HTTP_OPTIONS_KEY: PackedMessage.pack(options)},
        load_assignment=_assignment(name, _epp_addresses(config)),
    )
    if config.epp_tls:
        picker.transport_socket = _tls_socket(config)
    if CheckedHosts.ENDPOINT_PICKER in config.health_checks:
        check_endpoint_picker(picker, config)
    return picker


def _epp_addresses(config: GatewayConfig) -> list[core.Address]:
    """Return the address of each worker, or of the only process."""
    workers = range(config.epp_workers)
    if not config.epp_socket:
        return [socket_address(config.epp_host, config.epp_port + each) for each in workers]
    if config.epp_workers == 1:
        return [socket_path(config.epp_socket)]
    return [socket_path(str(of_worker(Path(config.epp_socket), each))) for each in workers]


def _tls_socket(config: GatewayConfig) -> core.TransportSocket:
    """Return the TLS socket; the certificate is verified only if there is a CA file."""
    is_ip = parse_ip(config.epp_host) is not None
    common = tls.CommonTlsContext(
        alpn_protocols=["h2"],
        # The default maximum of an Envoy client is TLS 1.2.
        tls_params=tls.TlsParameters(
            tls_minimum_protocol_version=tls.TlsParametersTlsProtocol.TLSv1_2,
            tls_maximum_protocol_version=tls.TlsParametersTlsProtocol.TLSv1_3,
        ),
    )
    if config.epp_ca_file:
        san = tls.SubjectAltNameMatcherSanType
        common.validation_context = tls.CertificateValidationContext(
            trusted_ca=core.DataSource(filename=config.epp_ca_file),
            match_typed_subject_alt_names=[
                tls.SubjectAltNameMatcher(
                    san_type=san.IP_ADDRESS if is_ip else san.DNS,
                    matcher=matcher.StringMatcher(exact=config.epp_host),
                )
            ],
        )
    if config.epp_client_certificate_file:
        common.tls_certificates = [
            tls.TlsCertificate(
                certificate_chain=core.DataSource(filename=config.epp_client_certificate_file),
                private_key=core.DataSource(filename=config.epp_client_key_file),
            )
        ]
    context = tls.UpstreamTlsContext(
        sni="" if is_ip else config.epp_host, common_tls_context=common
    )
    return core.TransportSocket(
        name="envoy.transport_sockets.tls", typed_config=PackedMessage.pack(context)
    )


def model_servers_cluster(config: GatewayConfig) -> cluster.Cluster:
    """Return the model servers' cluster, which routes to the picked endpoint.

    Raises:
        ValueError: The destination is `OVERRIDE_HOST`, and there is no endpoint.
    """
    explicit = upstream_http.HttpProtocolOptionsExplicitHttpConfig
    options = upstream_http.HttpProtocolOptions(
        common_http_protocol_options=core.HttpProtocolOptions(
            idle_timeout=seconds(config.endpoint_idle_seconds)
        ),
        explicit_http_config=explicit(
            http2_protocol_options=core.Http2ProtocolOptions(
                initial_stream_window_size=config.limits.stream_window_bytes
            )
        )
        if config.endpoint_protocol is ModelServerProtocol.H2C
        else explicit(http_protocol_options=core.Http1ProtocolOptions()),
    )
    servers = cluster.Cluster(
        name=MODEL_SERVERS_CLUSTER,
        connect_timeout=seconds(config.endpoint_connect_timeout_seconds),
        per_connection_buffer_limit_bytes=config.limits.buffer_bytes,
        circuit_breakers=_circuit_breakers(_retry_budget()),
        typed_extension_protocol_options={HTTP_OPTIONS_KEY: PackedMessage.pack(options)},
    )
    if config.destination is Destination.ORIGINAL_DST:
        servers.type = cluster.ClusterDiscoveryType.ORIGINAL_DST
        servers.lb_policy = cluster.ClusterLbPolicy.CLUSTER_PROVIDED
        servers.original_dst_lb_config = cluster.ClusterOriginalDstLbConfig(
            use_http_header=True, http_header_name=DESTINATION_HEADER
        )
    else:
        if not config.endpoints:
            raise ValueError("endpoints: override-host needs at least one")
        addresses = [socket_address(*split_endpoint(each)) for each in config.endpoints]
        servers.type = cluster.ClusterDiscoveryType.STATIC
        servers.load_assignment = _assignment(MODEL_SERVERS_CLUSTER, addresses)
        servers.load_balancing_policy = override_host_policy()
    if CheckedHosts.MODEL_SERVERS in config.health_checks:
        check_model_servers(servers, config)
    return servers


def override_host_policy() -> cluster.LoadBalancingPolicy:
    """Return the policy: the header, then the metadata, then round robin.

    A retry uses the next endpoint of the list. The policy writes the endpoint that served the
    request to the metadata.
    """
    source = override_host.OverrideHostOverrideHostSource
    policy = override_host.OverrideHost(
        override_host_sources=[
            source(header=DESTINATION_HEADER),
            source(metadata=_metadata_key(DESTINATION_HEADER)),
        ],
        selected_host_key=_metadata_key(SERVED_KEY),
        fallback_policy=_policy(
            extension("envoy.load_balancing_policies.round_robin", round_robin.RoundRobin())
        ),
    )
    return _policy(extension("envoy.load_balancing_policies.override_host", policy))


def _policy(config: core.TypedExtensionConfig) -> cluster.LoadBalancingPolicy:
    return cluster.LoadBalancingPolicy(
        policies=[cluster.LoadBalancingPolicyPolicy(typed_extension_config=config)]
    )


def _metadata_key(key: str) -> metadata.MetadataKey:
    return metadata.MetadataKey(
        key=DESTINATION_NAMESPACE, path=[metadata.MetadataKeyPathSegment(key=key)]
    )


def _assignment(name: str, addresses: list[core.Address]) -> endpoint.ClusterLoadAssignment:
    """Return all addresses in one locality, with equal weights."""
    hosts = [
        endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address)) for address in addresses
    ]
    return endpoint.ClusterLoadAssignment(
        cluster_name=name, endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=hosts)]
    )


def _circuit_breakers(
    retry_budget: cluster.CircuitBreakersThresholdsRetryBudget | None = None,
) -> cluster.CircuitBreakers:
    """Return unlimited thresholds: the default of 1024 would reject the 1025th queued request."""
    return cluster.CircuitBreakers(
        thresholds=[
            cluster.CircuitBreakersThresholds(
                max_connections=CIRCUIT_BREAKER_LIMIT,
                max_pending_requests=CIRCUIT_BREAKER_LIMIT,
                max_requests=CIRCUIT_BREAKER_LIMIT,
                max_retries=CIRCUIT_BREAKER_LIMIT,
                retry_budget=retry_budget,
            )
        ]
    )


def _retry_budget() -> cluster.CircuitBreakersThresholdsRetryBudget:
    """Return a budget for the loss of half of the model servers: all their requests at once."""
    return cluster.CircuitBreakersThresholdsRetryBudget(
        budget_percent=envoy_type.Percent(value=RETRY_BUDGET_PERCENT),
        min_retry_concurrency=MIN_RETRIES,
    )
