"""gRPC streams over HTTP/2: bytes in, bytes out; knows nothing of Envoy."""

from epp.transport.errors import ListenError, TransportError
from epp.transport.grpcio import GrpcioServer
from epp.transport.interface import OpenStream, Server, StatusCode, Stream, StreamHandler

__all__ = [
    "GrpcioServer",
    "ListenError",
    "OpenStream",
    "Server",
    "StatusCode",
    "Stream",
    "StreamHandler",
    "TransportError",
]
