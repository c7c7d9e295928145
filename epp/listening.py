"""The ext_proc port: which transport serves it, with which certificate."""

from collections.abc import Mapping

from epp.settings import ServeSettings
from epp.transport import (
    GrpcioServer,
    Http2Server,
    OpenStream,
    Server,
    load_certificate,
    make_context,
)


def make_server(settings: ServeSettings, methods: Mapping[str, OpenStream]) -> Server:
    """Make the transport, which does not listen yet; blocks, as it reads and makes certificates.

    Raises:
        TlsError: The certificate cannot be used.
    """
    tls = settings.tls
    certificate = None if tls is None else load_certificate(tls.certificate_directory)
    if settings.transport == "grpcio":
        return GrpcioServer(
            methods,
            host=settings.host,
            port=settings.grpc_port,
            max_message_bytes=settings.transport_settings.messages.max_message_bytes,
            certificate=certificate,
        )
    return Http2Server(
        methods,
        host=settings.host,
        port=settings.grpc_port,
        tls=None if tls is None or certificate is None else make_context(tls, certificate),
        settings=settings.transport_settings,
    )
