"""gRPC health checking (grpc.health.v1), on a separate port and optionally on the ext_proc port.

The separate port is for kubelet probes. It has its own thread and event loop, so that it responds
even if the main event loop is blocked. The service on the ext_proc port is for Envoy.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import uvloop
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from epp.observability import PortError
from epp.sockets import PortStatistics
from epp.transport import (
    Http2Server,
    ListenError,
    OpenStream,
    StatusCode,
    Stream,
    TransportSettings,
)

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_LIVENESS = "liveness"
_FOLLOW_READINESS = ("", "readiness", EXT_PROC_SERVICE, "inference-extension")
_Response = health_pb2.HealthCheckResponse
_SERVICE = "/grpc.health.v1.Health/"
_MAX_NAME = 200
MAX_CONNECTIONS = 256
"""Default connection limit of the health port."""

_SETTINGS = TransportSettings().with_values(
    {
        "max_concurrent_streams": 100,
        "max_message_bytes": 64 << 10,
        "max_buffered_bytes": 1 << 20,
        "max_waiting_stream_bytes": 64 << 10,
    }
)
"""Small limits: a health request has about 60 bytes."""


class HealthService:
    """The health service for one event loop.

    ``liveness`` is SERVING while ``is_alive``. ``""``, ``readiness``, the ext_proc service and
    ``inference-extension`` (probed by the conformance manifests) are SERVING while ``is_ready`` as
    well. For any other name, Check returns NOT_FOUND and Watch sends SERVICE_UNKNOWN.

    Args:
        is_ready: Called for each response.
        is_alive: Called for each response.
        poll_seconds: Polling interval while there are watchers.
    """

    def __init__(
        self,
        is_ready: Callable[[], bool],
        is_alive: Callable[[], bool] = lambda: True,
        *,
        poll_seconds: float = 0.25,
    ) -> None:
        self._is_ready = is_ready
        self._is_alive = is_alive
        self._poll_seconds = poll_seconds
        self._watches: set[_Watch] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.methods: Mapping[str, OpenStream] = {
            f"{_SERVICE}Check": lambda stream, _: _Call(stream, self._check),
            f"{_SERVICE}List": lambda stream, _: _Call(stream, self._list),
            f"{_SERVICE}Watch": lambda stream, _: _Watch(stream, self),
        }
        """Handlers by gRPC method path, for a transport."""

    def status(self, name: str) -> int | None:
        """Return the ServingStatus of the service ``name``; None if it is unknown."""
        if name == _LIVENESS:
            is_serving = self._is_alive()
        elif name in _FOLLOW_READINESS:
            is_serving = self._is_alive() and self._is_ready()
        else:
            return None
        status = _Response.SERVING if is_serving else _Response.NOT_SERVING
        return int(status)

    def close(self) -> None:
        """Send watchers the final status and end their streams; later ones get only a status."""
        self._is_closed = True
        for watch in list(self._watches):
            watch.send_if_changed()
            watch.end()
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def start_watch(self, watch: "_Watch") -> None:
        """Send status changes to ``watch`` until :meth:`stop_watch`."""
        if self._is_closed:
            watch.end()
            return
        self._watches.add(watch)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._poll_seconds, self._poll)

    def stop_watch(self, watch: "_Watch") -> None:
        """Undo :meth:`start_watch`."""
        self._watches.discard(watch)

    def _poll(self) -> None:
        self._timer = None
        if self._watches:
            self._timer = asyncio.get_running_loop().call_later(self._poll_seconds, self._poll)
        for watch in list(self._watches):
            watch.send_if_changed()

    def _check(self, stream: Stream, request: bytes) -> None:
        name = _name(request)
        status = self.status(name)
        if status is None:
            stream.finish(StatusCode.NOT_FOUND, f"unknown service {name[:_MAX_NAME]!r}")
        else:
            _respond(stream, _Response(status=status))

    def _list(self, stream: Stream, request: bytes) -> None:
        health_pb2.HealthListRequest.FromString(request)
        names = (_LIVENESS, *_FOLLOW_READINESS)
        statuses = {name: _Response(status=self.status(name)) for name in names}
        _respond(stream, health_pb2.HealthListResponse(statuses=statuses))


class _Call:
    """A unary call: responds to the one request message when the client half-closes."""

    def __init__(self, stream: Stream, respond: Callable[[Stream, bytes], None]) -> None:
        self._stream = stream
        self._respond = respond
        self._requests: list[bytes] = []

    def message(self, data: bytes) -> None:
        if self._requests:
            self._stream.finish(StatusCode.INVALID_ARGUMENT, "more than one request message")
        self._requests.append(data)

    def half_closed(self) -> None:
        if not self._requests:
            self._stream.finish(StatusCode.INVALID_ARGUMENT, "no request message")
            return
        try:
            self._respond(self._stream, self._requests[0])
        except DecodeError:
            self._stream.finish(StatusCode.INVALID_ARGUMENT, "the request message cannot be parsed")

    def reset(self) -> None:
        """Nothing to clean up."""

    def writable(self) -> None:
        """Nothing to send: the response is sent at once."""


class _Watch(_Call):
    """A Watch call, which sends every status change."""

    def __init__(self, stream: Stream, service: HealthService) -> None:
        super().__init__(stream, self._begin)
        self._service = service
        self._name = ""
        self._sent: int | None = None

    def send_if_changed(self) -> None:
        """Send the status if it has changed and the stream is writable."""
        known = self._service.status(self._name)
        status = _Response.SERVICE_UNKNOWN if known is None else known
        if status != self._sent and self._stream.is_writable:
            self._sent = status
            self._stream.send(_Response(status=status).SerializeToString())

    def end(self) -> None:
        """End the stream."""
        self._stream.finish()

    def reset(self) -> None:
        self._service.stop_watch(self)

    def _begin(self, _: Stream, request: bytes) -> None:
        self._name = _name(request)
        self.send_if_changed()
        self._service.start_watch(self)


def _name(request: bytes) -> str:
    return str(health_pb2.HealthCheckRequest.FromString(request).service)


def _respond(stream: Stream, response: Message) -> None:
    stream.send(response.SerializeToString())
    stream.finish()


class HealthServer:
    """The plaintext gRPC health port; see :class:`HealthService`."""

    def __init__(
        self,
        is_ready: Callable[[], bool],
        *,
        host: str,
        port: int,
        is_alive: Callable[[], bool] = lambda: True,
        max_connections: int = MAX_CONNECTIONS,
        exhausted: Callable[[], None] = lambda: None,
        path: Path | None = None,
    ) -> None:
        """Create the server; :meth:`start` makes it listen.

        Args:
            is_ready: Called for each response, in the server's thread.
            host: Address to listen on.
            port: Port to listen on; 0 for any free one.
            is_alive: Called like ``is_ready``.
            max_connections: Limit on open connections.
            exhausted: Called when the process runs out of descriptors; may close connections.
            path: Socket file to listen on instead of ``host`` and ``port``.
        """
        self._service = HealthService(is_ready, is_alive)
        self._server = Http2Server(
            self._service.methods,
            host=host,
            port=port,
            path=path,
            settings=replace(_SETTINGS, max_connections=max_connections),
            name="health",
            # A watcher can reconnect, but a refused probe would get the pod restarted.
            evicts_streams=True,
            exhausted=exhausted,
        )
        self._host = host
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def port_statistics(self) -> PortStatistics:
        """Return statistics of the port; thread-safe."""
        return self._server.port_statistics()

    def close_idle(self) -> None:
        """Close idle connections to free descriptors; thread-safe."""
        self._server.close_idle()

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            PortError: The port is in use, or the address is not local.
        """
        loop = self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="health", daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(self._server.start(), loop)
        try:
            return await asyncio.wrap_future(starting)
        except ListenError as error:
            raise PortError(
                f"cannot serve gRPC health on {self._host} port {self._port}: {error.reason};"
                " stop the other process, or give another --grpc-health-port or --host"
            ) from error

    async def stop(self) -> None:
        """End all Watch streams and stop the server."""
        loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        stopping = asyncio.run_coroutine_threadsafe(self._stop(), loop)
        try:
            await asyncio.wrap_future(stopping)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)
            loop.close()

    async def _stop(self) -> None:
        self._service.close()
        await self._server.stop(0)
