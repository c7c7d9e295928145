"""gRPC server over HTTP/2, independent of the services that it serves.

:class:`epp.transport.grpcio.GrpcioServer` is not imported here: the C core takes 30 ms to load.
"""

from epp.transport.budget import Budget
from epp.transport.certificate import Certificate, load_certificate
from epp.transport.credentials import Credentials, CredentialsFollower, load_credentials
from epp.transport.errors import ListenError, TlsError, TransportError
from epp.transport.interface import OpenStream, Server, StatusCode, Stream, StreamHandler
from epp.transport.replaceable_context import ReplaceableContext
from epp.transport.server import Http2Server
from epp.transport.settings import GrpcLimits, Timeouts, TransportSettings
from epp.transport.statistics import ServerCounters, TransportStatistics
from epp.transport.stream_observer import StreamObserver, observed
from epp.transport.tls import TlsSettings, make_context, minimum_version_from_flag

__all__ = [
    "Budget",
    "Certificate",
    "Credentials",
    "CredentialsFollower",
    "GrpcLimits",
    "Http2Server",
    "ListenError",
    "OpenStream",
    "ReplaceableContext",
    "Server",
    "ServerCounters",
    "StatusCode",
    "Stream",
    "StreamHandler",
    "StreamObserver",
    "Timeouts",
    "TlsError",
    "TlsSettings",
    "TransportError",
    "TransportSettings",
    "TransportStatistics",
    "load_certificate",
    "load_credentials",
    "make_context",
    "minimum_version_from_flag",
    "observed",
]
