"""Creates the ext_proc transport and the TLS contexts of the ext_proc and metrics ports."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from epp.settings import ServeSettings
from epp.transport import (
    Budget,
    Credentials,
    CredentialsFollower,
    Http2Server,
    OpenStream,
    ReplaceableContext,
    Server,
    TlsSettings,
    load_credentials,
    make_context,
)

if TYPE_CHECKING:
    from epp.transport.grpcio import GrpcioServer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Listener:
    """A transport with the task that reloads its certificate."""

    server: Server
    follower: CredentialsFollower | None = None
    """Must be run alongside the server; None if there is no certificate file to follow."""


def make_listener(
    settings: ServeSettings,
    methods: Mapping[str, OpenStream],
    *,
    budget: Budget | None = None,
    exhausted: Callable[[], None] = lambda: None,
) -> Listener:
    """Create the transport, which does not listen yet; blocks: it reads or generates certificates.

    Args:
        settings: Ports, transport and TLS.
        methods: Handlers by gRPC method path.
        budget: Memory budget for bytes that the transport buffers; grpcio ignores it.
        exhausted: Called when the process runs out of descriptors; may close connections.

    Raises:
        TlsError: The certificate is invalid.
    """
    tls = settings.tls
    credentials = None if tls is None else load_credentials(tls)
    server: GrpcioServer | Http2Server
    if settings.transport == "grpcio":
        server = _grpcio_server(settings, methods, credentials)
    else:
        server = Http2Server(
            methods,
            host=settings.host,
            port=settings.grpc_port,
            path=settings.socket_file,
            tls=None if tls is None or credentials is None else _context(tls, credentials),
            settings=settings.transport_settings,
            budget=budget,
            exhausted=exhausted,
        )
    if tls is None or credentials is None or not (tls.files and settings.reload_certificates):
        return Listener(server)
    follower = CredentialsFollower(
        tls, credentials, _user(server, tls), poll_seconds=settings.certificate_poll_seconds
    )
    return Listener(server, follower)


def _grpcio_server(
    settings: ServeSettings, methods: Mapping[str, OpenStream], credentials: Credentials | None
) -> "GrpcioServer":
    from epp.transport.grpcio import GrpcioServer  # noqa: PLC0415 - an optional dependency

    messages = settings.transport_settings.messages
    return GrpcioServer(
        methods,
        host=settings.host,
        port=settings.grpc_port,
        path=settings.socket_file,
        max_message_bytes=messages.max_message_bytes,
        max_sent_message_bytes=messages.max_sent_message_bytes,
        max_connections=settings.transport_settings.max_connections,
        credentials=credentials,
    )


def make_metrics_tls(
    settings: ServeSettings,
) -> tuple[ssl.SSLContext, CredentialsFollower] | tuple[None, None]:
    """Return the TLS context of the metrics port and the task that reloads it; blocks.

    Raises:
        TlsError: The certificate is invalid.
    """
    tls = settings.metrics_tls
    if tls is None:
        return None, None

    def context(found: Credentials) -> ssl.SSLContext:
        return make_context(tls, found.certificate, found.client_authorities, protocol="http/1.1")

    credentials = load_credentials(tls)
    listening = ReplaceableContext(context(credentials), _handshake_failed)
    follower = CredentialsFollower(
        tls,
        credentials,
        lambda found: listening.replace(context(found)),
        poll_seconds=settings.certificate_poll_seconds,
    )
    return listening, follower


def _handshake_failed(error: ssl.SSLError) -> None:
    log.debug("handshake failed", port="metrics", reason=error.reason)


def _user(server: "GrpcioServer | Http2Server", tls: TlsSettings) -> Callable[[Credentials], None]:
    if isinstance(server, Http2Server):
        return lambda credentials: server.use_context(_context(tls, credentials))
    return server.use_credentials


def _context(tls: TlsSettings, credentials: Credentials) -> ssl.SSLContext:
    return make_context(tls, credentials.certificate, credentials.client_authorities)
