"""gRPC over HTTP/2, server side: messages, methods, deadlines and statuses."""

from epp.transport.grpc.counters import GrpcCounters
from epp.transport.grpc.session import GrpcLimits, GrpcSession

__all__ = ["GrpcCounters", "GrpcLimits", "GrpcSession"]
