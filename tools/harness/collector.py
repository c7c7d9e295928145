"""A collector, Rotel, which forwards the spans that it receives to a receiver in this process."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import rotel  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tools.harness.ports import free_ports

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_START_SECONDS = 20
AGENT = Path(rotel.__file__).parent / "rotel-agent"


@dataclass(slots=True)
class Receiver:
    """Receives spans over gRPC."""

    resources: list[ResourceSpans] = field(default_factory=list)
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def spans(self) -> list[Span]:
        """The spans received so far."""
        return [
            span for each in self.resources for scope in each.scope_spans for span in scope.spans
        ]

    async def wait_for(self, name: str, count: int = 1) -> list[Span]:
        """Wait until `count` spans with a name have arrived; return all spans."""
        async with asyncio.timeout(20), self._arrived:
            await self._arrived.wait_for(
                lambda: sum(span.name == name for span in self.spans) >= count
            )
        return self.spans

    async def export(self, request: ExportTraceServiceRequest, _: object) -> object:
        async with self._arrived:
            self.resources.extend(request.resource_spans)
            self._arrived.notify_all()
        return ExportTraceServiceResponse()


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[tuple[Receiver, int]]:
    """Run a receiver; yield it and its port."""
    receiver = Receiver()
    handler = grpc.unary_unary_rpc_method_handler(
        receiver.export,
        request_deserializer=ExportTraceServiceRequest.FromString,
        response_serializer=ExportTraceServiceResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver, port
    finally:
        await server.stop(None)


@dataclass(slots=True)
class Collector:
    """A running collector."""

    grpc_url: str
    http_url: str
    receiver: Receiver


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Run a collector that receives spans over gRPC and HTTP."""
    async with receiving() as (receiver, port):
        grpc_port, http_port = await asyncio.to_thread(free_ports, 2)
        process = await asyncio.create_subprocess_exec(
            AGENT,
            "start",
            *("--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}"),
            *("--otlp-http-endpoint", f"127.0.0.1:{http_port}"),
            *("--exporter", "otlp"),
            *("--otlp-exporter-endpoint", f"http://127.0.0.1:{port}"),
            *("--batch-timeout", "20ms"),
            stdout=sys.stderr,
            stderr=sys.stderr,
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                for each in (grpc_port, http_port):
                    await _until_listening(each)
            yield Collector(
                f"http://127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}", receiver
            )
        finally:
            process.terminate()
            await process.wait()


async def _until_listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            await writer.wait_closed()
            return
