"""The gateway's listener: removes and sets request headers, calls ext_proc, and routes."""

from collections.abc import Sequence

from epp.lab.envoy._data_plane import (
    PackedMessage,
    betterproto2,
    connection_manager,
    core,
    envoy_type,
    ext_proc,
    extension,
    header_to_metadata,
    listener,
    mutation_rules,
    previous_hosts,
    route,
    router,
    seconds,
    socket_address,
)
from epp.lab.envoy.access_log import access_log
from epp.lab.envoy.gateway_config import Destination, GatewayConfig, Mode
from epp.lab.envoy.gateway_limits import GatewayLimits
from epp.lab.envoy.header_mutations import early_removal, set_headers
from epp.lab.envoy.names import (
    DESTINATION_NAMESPACE,
    EPP_CLUSTER,
    EPP_LARGE_REQUESTS_CLUSTER,
    HEDGING,
    LISTENER,
    MAX_DESTINATIONS,
    MODEL_SERVERS_CLUSTER,
    POOL,
    RESPONSE_DETAILS,
    SERVED_ADDRESS,
    SERVED_HEADER,
    SERVED_KEY,
    STAT_PREFIX,
    SUBSET_NAMESPACE,
)

_RETRY_UNSENT = "connect-failure,refused-stream,reset-before-request"
"""Failures before the request reaches a model server."""

_RETRY_RESETS = "connect-failure,refused-stream,reset"
"""Failures before the response begins."""

EPP_RETRY_ON = "connect-failure,refused-stream,reset-before-request"
"""Failures of a stream to an endpoint picker that has stopped or is shutting down."""

EPP_RETRIES = 2

_EXT_PROC = "ext_proc"

_Headers = ext_proc.ProcessingModeHeaderSendMode
_Body = ext_proc.ProcessingModeBodySendMode


def http_listener(config: GatewayConfig) -> listener.Listener:
    """Return the listener with its filters and routes."""
    limits = config.limits
    filters = [_http_filter(_EXT_PROC, endpoint_picker(config))]
    if config.headers.to_set:
        filters.insert(0, _http_filter("header_mutation", set_headers(config.headers)))
    if config.destination is Destination.ORIGINAL_DST:
        # After ext_proc: the filters handle a response in reverse order.
        filters.append(_http_filter("header_to_metadata", _served_endpoint()))
    filters.append(_http_filter("router", router.Router()))
    manager = connection_manager.HttpConnectionManager(
        stat_prefix=STAT_PREFIX,
        # Append the address of the peer to x-forwarded-for.
        use_remote_address=True,
        xff_num_trusted_hops=config.trusted_hops,
        # Keep the x-request-id of a client; by default an edge Envoy replaces it.
        preserve_external_request_id=True,
        stream_idle_timeout=seconds(limits.stream_idle_seconds),
        stream_flush_timeout=seconds(limits.stream_flush_seconds),
        request_timeout=seconds(limits.request_seconds),
        request_headers_timeout=seconds(limits.request_headers_seconds),
        # Some servers read x_y as x-y, so a client could evade the removal of a header.
        common_http_protocol_options=core.HttpProtocolOptions(
            idle_timeout=seconds(limits.connection_idle_seconds),
            headers_with_underscores_action=(
                core.HttpProtocolOptionsHeadersWithUnderscoresAction.DROP_HEADER
            ),
        ),
        http2_protocol_options=downstream_http2(limits),
        early_header_mutation_extensions=[early_removal(config.headers)],
        http_filters=filters,
        route_config=_routes(config),
        access_log=[access_log(config.access_log)] if config.access_log else [],
    )
    http = listener.Filter(
        name="envoy.filters.network.http_connection_manager",
        typed_config=PackedMessage.pack(manager),
    )
    return listener.Listener(
        name=LISTENER,
        address=socket_address(config.listen_host, config.listen_port),
        enable_reuse_port=config.reuse_port,
        # Limits responses only; buffered request bodies have the limit of the route.
        per_connection_buffer_limit_bytes=limits.buffer_bytes,
        filter_chains=[listener.FilterChain(filters=[http])],
    )


def downstream_http2(limits: GatewayLimits) -> core.Http2ProtocolOptions:
    """Return the limits of a client's HTTP/2 connection.

    Envoy buffers a response up to the stream window: with its default of 16 MiB, one connection
    with 100 slow streams used 1.8 GB.
    """
    return core.Http2ProtocolOptions(
        max_concurrent_streams=limits.max_streams,
        initial_stream_window_size=limits.stream_window_bytes,
        initial_connection_window_size=limits.connection_window_bytes,
    )


def _http_filter(name: str, config: betterproto2.Message) -> connection_manager.HttpFilter:
    return connection_manager.HttpFilter(
        name=_filter_name(name), typed_config=PackedMessage.pack(config)
    )


def _filter_name(name: str) -> str:
    return f"envoy.filters.http.{name}"


def _served_endpoint() -> header_to_metadata.Config:
    """Return the filter that moves the header `SERVED_HEADER` of a response to the metadata."""
    value = header_to_metadata.ConfigKeyValuePair(
        metadata_namespace=DESTINATION_NAMESPACE, key=SERVED_KEY
    )
    rule = header_to_metadata.ConfigRule(header=SERVED_HEADER, on_header_present=value, remove=True)
    return header_to_metadata.Config(response_rules=[rule])


def endpoint_picker(config: GatewayConfig) -> ext_proc.ExternalProcessor:
    """Return the configuration of the ext_proc filter."""
    namespaces = ext_proc.MetadataOptionsMetadataNamespaces
    return ext_proc.ExternalProcessor(
        grpc_service=_grpc_service(EPP_CLUSTER, config),
        failure_mode_allow=config.fail_open,
        processing_mode=processing_mode(config.mode),
        message_timeout=seconds(config.message_timeout_seconds),
        max_message_timeout=seconds(config.message_timeout_seconds),
        allow_mode_override=config.mode is Mode.ADAPTIVE,
        allow_content_length_header=config.keep_content_length,
        mutation_rules=mutation_rules.HeaderMutationRules(
            allow_all_routing=True, allow_envoy=config.hedging or None
        ),
        response_attributes=[RESPONSE_DETAILS, *([SERVED_ADDRESS] if config.hedging else [])],
        metadata_options=ext_proc.MetadataOptions(
            receiving_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE]),
            forwarding_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE, SUBSET_NAMESPACE]),
        ),
    )


def _grpc_service(cluster: str, config: GatewayConfig) -> core.GrpcService:
    service = core.GrpcService(
        envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=cluster),
        retry_policy=_another_endpoint_picker(),
    )
    if config.max_destinations > 1:
        value = str(config.max_destinations)
        service.initial_metadata = [core.HeaderValue(key=MAX_DESTINATIONS, value=value)]
    if config.hedging:
        service.initial_metadata.append(core.HeaderValue(key=HEDGING, value="true"))
    if config.pool:
        service.initial_metadata.append(core.HeaderValue(key=POOL, value=config.pool))
    return service


def _another_endpoint_picker() -> core.RetryPolicy:
    """Return the retry policy of ext_proc streams.

    Without health checks Envoy opens streams to an endpoint picker that has stopped. The policy
    retries such a stream on another address, or on the same one if there is no other.
    """
    others = extension(
        "envoy.retry_host_predicates.previous_hosts", previous_hosts.PreviousHostsPredicate()
    )
    return core.RetryPolicy(
        retry_on=EPP_RETRY_ON,
        num_retries=EPP_RETRIES,
        retry_back_off=core.BackoffStrategy(
            base_interval=seconds(0.025), max_interval=seconds(0.25)
        ),
        retry_host_predicate=[
            core.RetryPolicyRetryHostPredicate(name=others.name, typed_config=others.typed_config)
        ],
        host_selection_retry_max_attempts=3,
    )


def processing_mode(mode: Mode) -> ext_proc.ProcessingMode:
    """Return which parts of a request and its response the filter sends.

    Response trailers are always sent: if neither they nor the response body were, the stream would
    end at the first byte of the body.
    """
    adaptive = mode is Mode.ADAPTIVE
    full_duplex = mode is Mode.FULL_DUPLEX
    return ext_proc.ProcessingMode(
        request_header_mode=_Headers.SEND,
        request_body_mode=_Body.BUFFERED if adaptive else _Body.FULL_DUPLEX_STREAMED,
        request_trailer_mode=_Headers.SKIP if adaptive else _Headers.SEND,
        response_header_mode=_Headers.SEND,
        response_body_mode=_Body.FULL_DUPLEX_STREAMED if full_duplex else _Body.NONE,
        response_trailer_mode=_Headers.SEND,
    )


def _routes(config: GatewayConfig) -> route.RouteConfiguration:
    """Return routes that send all requests to the model servers, without a timeout."""
    everything = _route(config)
    routes = [everything]
    if config.limits.small_request_bytes:
        routes.insert(0, _route(config, _small_bodies(config.limits.small_request_bytes)))
        overrides = ext_proc.ExtProcOverrides(
            grpc_service=_grpc_service(EPP_LARGE_REQUESTS_CLUSTER, config)
        )
        everything.typed_per_filter_config = {
            _filter_name(_EXT_PROC): PackedMessage.pack(
                ext_proc.ExtProcPerRoute(overrides=overrides)
            )
        }
    return route.RouteConfiguration(
        name=LISTENER,
        virtual_hosts=[route.VirtualHost(name="all", domains=["*"], routes=routes)],
    )


def _route(config: GatewayConfig, headers: Sequence[route.HeaderMatcher] = ()) -> route.Route:
    retries = route.RetryPolicy(retry_on=retry_on(config), num_retries=config.retries)
    to_model_servers = route.Route(
        match=route.RouteMatch(prefix="/", headers=list(headers)),
        request_body_buffer_limit=config.buffer_limit_bytes,
        route=route.RouteAction(
            cluster=MODEL_SERVERS_CLUSTER,
            timeout=seconds(0),
            retry_policy=retries if config.retries else None,
        ),
    )
    if config.destination is Destination.ORIGINAL_DST:
        served = core.HeaderValue(key=SERVED_HEADER, value="%UPSTREAM_REMOTE_ADDRESS%")
        overwrite = core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
        to_model_servers.response_headers_to_add = [
            core.HeaderValueOption(header=served, append_action=overwrite)
        ]
    return to_model_servers


def retry_on(config: GatewayConfig) -> str:
    """Return the conditions of a retry at a model server.

    With ORIGINAL_DST a retry goes to the same server, so only requests that it has not seen are
    sent again.
    """
    if config.retry_resets and config.destination is Destination.OVERRIDE_HOST:
        return _RETRY_RESETS
    return _RETRY_UNSENT


def _small_bodies(limit: int) -> list[route.HeaderMatcher]:
    """Return matchers of uncompressed requests with a known length of at most `limit` bytes."""
    return [
        route.HeaderMatcher(
            name="content-length", range_match=envoy_type.Int64Range(start=0, end=limit + 1)
        ),
        route.HeaderMatcher(name="content-encoding", present_match=False),
    ]
