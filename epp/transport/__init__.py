"""gRPC streams over HTTP/2: bytes in, bytes out; knows nothing of Envoy."""

from epp.transport.errors import ListenError, TlsError, TransportError
from epp.transport.grpcio import GrpcioServer
from epp.transport.interface import OpenStream, Server, StatusCode, Stream, StreamHandler
from epp.transport.server import Http2Server
from epp.transport.settings import ServerCounters, Timeouts, TransportSettings

__all__ = [
    "GrpcioServer",
    "Http2Server",
    "ListenError",
    "OpenStream",
    "Server",
    "ServerCounters",
    "StatusCode",
    "Stream",
    "StreamHandler",
    "Timeouts",
    "TlsError",
    "TransportError",
    "TransportSettings",
]
