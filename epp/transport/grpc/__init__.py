"""The server side of gRPC over HTTP/2: messages, methods, deadlines and statuses."""

from epp.transport.grpc.session import GrpcSession

__all__ = ["GrpcSession"]
