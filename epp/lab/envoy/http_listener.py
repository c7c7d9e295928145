"""The gateway's listener: clean the request's headers, ask the endpoint picker, route."""

from epp.lab.envoy._data_plane import (
    PackedMessage,
    connection_manager,
    core,
    early_header_mutation,
    ext_proc,
    extension,
    listener,
    mutation_rules,
    route,
    router,
    seconds,
    socket_address,
)
from epp.lab.envoy.gateway_config import GatewayConfig, Mode
from epp.lab.envoy.names import (
    DESTINATION_HEADER,
    DESTINATION_NAMESPACE,
    EPP_CLUSTER,
    LISTENER,
    MODEL_SERVERS_CLUSTER,
    STAT_PREFIX,
    SUBSET_NAMESPACE,
)

RETRY_ON = "connect-failure,reset-before-request"
"""Only failures before a model server saw the request: a generation must not run twice."""

_Headers = ext_proc.ProcessingModeHeaderSendMode
_Body = ext_proc.ProcessingModeBodySendMode


def http_listener(config: GatewayConfig) -> listener.Listener:
    """Return the listener with its filters and its one route."""
    manager = connection_manager.HttpConnectionManager(
        stat_prefix=STAT_PREFIX,
        use_remote_address=True,
        # Clients name their requests; without this Envoy, as an edge, writes an id of its own.
        preserve_external_request_id=True,
        # A request may be silent for long: in a queue, or while a model server works on the prompt.
        stream_idle_timeout=seconds(0),
        early_header_mutation_extensions=[_strip_destination()],
        http_filters=[
            connection_manager.HttpFilter(
                name="envoy.filters.http.ext_proc",
                typed_config=PackedMessage.pack(_endpoint_picker(config)),
            ),
            connection_manager.HttpFilter(
                name="envoy.filters.http.router",
                typed_config=PackedMessage.pack(router.Router()),
            ),
        ],
        route_config=_routes(config),
    )
    http = listener.Filter(
        name="envoy.filters.network.http_connection_manager",
        typed_config=PackedMessage.pack(manager),
    )
    return listener.Listener(
        name=LISTENER,
        address=socket_address(config.listen_host, config.listen_port),
        enable_reuse_port=config.reuse_port,
        filter_chains=[listener.FilterChain(filters=[http])],
    )


def _strip_destination() -> core.TypedExtensionConfig:
    """Remove the client's own destination: with fail-open, it would steer the gateway."""
    removal = mutation_rules.HeaderMutation(remove=DESTINATION_HEADER)
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        early_header_mutation.HeaderMutation(mutations=[removal]),
    )


def _endpoint_picker(config: GatewayConfig) -> ext_proc.ExternalProcessor:
    """The ext_proc filter."""
    namespaces = ext_proc.MetadataOptionsMetadataNamespaces
    return ext_proc.ExternalProcessor(
        grpc_service=core.GrpcService(
            envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=EPP_CLUSTER)
        ),
        failure_mode_allow=config.fail_open,
        processing_mode=_processing_mode(config.mode),
        message_timeout=seconds(config.message_timeout_seconds),
        max_message_timeout=seconds(config.message_timeout_seconds),
        allow_mode_override=config.mode is Mode.ADAPTIVE,
        mutation_rules=mutation_rules.HeaderMutationRules(allow_all_routing=True),
        metadata_options=ext_proc.MetadataOptions(
            receiving_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE]),
            forwarding_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE, SUBSET_NAMESPACE]),
        ),
    )


def _processing_mode(mode: Mode) -> ext_proc.ProcessingMode:
    """What the filter sends; response trailers always, or the stream ends at the first byte."""
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
    retries = route.RetryPolicy(retry_on=RETRY_ON, num_retries=config.retries)
    everything = route.Route(
        match=route.RouteMatch(prefix="/"),
        request_body_buffer_limit=config.buffer_limit_bytes,
        route=route.RouteAction(
            cluster=MODEL_SERVERS_CLUSTER,
            timeout=seconds(0),
            idle_timeout=seconds(0),
            retry_policy=retries if config.retries else None,
        ),
    )
    return route.RouteConfiguration(
        name=LISTENER,
        virtual_hosts=[route.VirtualHost(name="all", domains=["*"], routes=[everything])],
    )
