"""The two side doors: gRPC health for probes and /metrics for Prometheus."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import grpc
import prometheus_client
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.observability.metrics import Metrics

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"


class PortError(Exception):
    """A port of ours cannot be listened on."""


class HealthServer:
    """gRPC health checking (grpc.health.v1) on a port of its own.

    ``liveness`` is SERVING while ``is_alive``; ``""``, ``readiness``, the ext_proc name and
    ``inference-extension`` (the name the conformance manifests probe) while ``is_ready`` as well;
    any other name is NOT_FOUND. Answers come from threads, so that they come when the event loop
    stands still, too.
    """

    def __init__(
        self,
        is_ready: Callable[[], bool],
        *,
        host: str,
        port: int,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._servicer = _Health(is_ready, is_alive)
        self._host = host
        self._port = port
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="health")
        self._server = grpc.server(self._threads, options=[("grpc.so_reuseport", 0)])

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            PortError: It is taken, or the host is not this one.
        """
        host = f"[{self._host}]" if ":" in self._host else self._host
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        try:
            port: int = self._server.add_insecure_port(f"{host}:{self._port}")
        except RuntimeError as error:
            raise PortError(
                # grpcio writes the reason to standard error and does not tell it here.
                f"cannot serve gRPC health on {self._host} port {self._port}: if it is taken, stop"
                " the other process or give another --grpc-health-port; if this machine has no such"
                " address, give another --host"
            ) from error
        self._server.start()
        return port

    async def stop(self) -> None:
        """Stop at once."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._server.stop(None).wait()
        self._threads.shutdown()


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # grpcio has no types
    _FOLLOW_READINESS = frozenset({"", "readiness", EXT_PROC_SERVICE, "inference-extension"})

    def __init__(self, is_ready: Callable[[], bool], is_alive: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._is_alive = is_alive

    def Check(  # noqa: N802 - gRPC's method name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service in self._FOLLOW_READINESS:
            serving = self._is_alive() and self._is_ready()
        elif request.service == "liveness":
            serving = self._is_alive()
        else:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details(f"unknown service {request.service!r}")
            return health_pb2.HealthCheckResponse()
        response = health_pb2.HealthCheckResponse
        return response(status=response.SERVING if serving else response.NOT_SERVING)


class MetricsServer:
    """/metrics over plain HTTP, in a thread of its own."""

    def __init__(self, metrics: Metrics, *, host: str, port: int) -> None:
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                port, addr=host, registry=metrics.registry
            )
        except OSError as error:
            raise PortError(
                f"cannot serve metrics on {host} port {port}: {error.strerror};"
                " stop the other process, or give another --metrics-port or --host"
            ) from error

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
