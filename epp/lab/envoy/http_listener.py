"""The gateway's listener: clean the request's headers, ask the endpoint picker, route."""

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
    LISTENER,
    MODEL_SERVERS_CLUSTER,
    SERVED_HEADER,
    SERVED_KEY,
    STAT_PREFIX,
    SUBSET_NAMESPACE,
)

RETRY_ON = "connect-failure,reset-before-request"
"""Only failures before a model server saw the request: a generation must not run twice."""

EPP_RETRY_ON = "connect-failure,refused-stream,reset-before-request"
"""A stream to an endpoint picker that is gone, or is going, is tried with another one."""

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
        # Behind ext_proc, so that its rule for responses comes first.
        filters.append(_http_filter("header_to_metadata", _served_endpoint()))
    filters.append(_http_filter("router", router.Router()))
    manager = connection_manager.HttpConnectionManager(
        stat_prefix=STAT_PREFIX,
        # The last entry of x-forwarded-for is then the address that Envoy itself saw.
        use_remote_address=True,
        xff_num_trusted_hops=config.trusted_hops,
        # Clients name their requests; without this Envoy, as an edge, writes an id of its own.
        preserve_external_request_id=True,
        stream_idle_timeout=seconds(limits.stream_idle_seconds),
        stream_flush_timeout=seconds(limits.stream_flush_seconds),
        request_timeout=seconds(limits.request_seconds),
        request_headers_timeout=seconds(limits.request_headers_seconds),
        # Some servers take x_y for x-y: what is taken off must not come back spelt like that.
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
        # Of answers. Request bodies that are buffered whole have the limit of the route.
        per_connection_buffer_limit_bytes=limits.buffer_bytes,
        filter_chains=[listener.FilterChain(filters=[http])],
    )


def downstream_http2(limits: GatewayLimits) -> core.Http2ProtocolOptions:
    """Return the limits of a client's HTTP/2 connection.

    Envoy buffers a stream's answer up to the window that it gives itself: with its own 16 MiB one
    connection of 100 slow streams took 1.8 GB.
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
    """Tell ext_proc, with the response headers, what the route wrote into one of them."""
    value = header_to_metadata.ConfigKeyValuePair(
        metadata_namespace=DESTINATION_NAMESPACE, key=SERVED_KEY
    )
    rule = header_to_metadata.ConfigRule(header=SERVED_HEADER, on_header_present=value, remove=True)
    return header_to_metadata.Config(response_rules=[rule])


def endpoint_picker(config: GatewayConfig) -> ext_proc.ExternalProcessor:
    """Return the configuration of the ext_proc filter."""
    namespaces = ext_proc.MetadataOptionsMetadataNamespaces
    return ext_proc.ExternalProcessor(
        grpc_service=_grpc_service(EPP_CLUSTER),
        failure_mode_allow=config.fail_open,
        processing_mode=processing_mode(config.mode),
        message_timeout=seconds(config.message_timeout_seconds),
        max_message_timeout=seconds(config.message_timeout_seconds),
        allow_mode_override=config.mode is Mode.ADAPTIVE,
        allow_content_length_header=config.keep_content_length,
        mutation_rules=mutation_rules.HeaderMutationRules(allow_all_routing=True),
        metadata_options=ext_proc.MetadataOptions(
            receiving_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE]),
            forwarding_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE, SUBSET_NAMESPACE]),
        ),
    )


def _grpc_service(cluster: str) -> core.GrpcService:
    return core.GrpcService(
        envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=cluster),
        retry_policy=_another_endpoint_picker(),
    )


def _another_endpoint_picker() -> core.RetryPolicy:
    """Without health checks Envoy goes on to open streams to an endpoint picker that has stopped.

    Such a stream is tried with one of the others; where there is one address, there again.
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
    """Return what the filter sends.

    Response trailers always: without them and the response body a stream ends at the first byte.
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
    """Everything to the model servers, for as long as it takes."""
    everything = _route(config)
    routes = [everything]
    if config.limits.small_request_bytes:
        routes.insert(0, _route(config, _small_bodies(config.limits.small_request_bytes)))
        overrides = ext_proc.ExtProcOverrides(
            grpc_service=_grpc_service(EPP_LARGE_REQUESTS_CLUSTER)
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
    retries = route.RetryPolicy(retry_on=RETRY_ON, num_retries=config.retries)
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


def _small_bodies(limit: int) -> list[route.HeaderMatcher]:
    """Match requests of a known length up to `limit` bytes, not compressed."""
    return [
        route.HeaderMatcher(
            name="content-length", range_match=envoy_type.Int64Range(start=0, end=limit + 1)
        ),
        route.HeaderMatcher(name="content-encoding", present_match=False),
    ]
