"""The transport on grpc.aio, the asyncio API of the gRPC C core.

grpc.aio runs each call as a coroutine; this adapter translates it to the callbacks of
:mod:`epp.transport.interface`. The coroutine reads a message, passes it to the handler, and writes
what the handler has sent, so no further task is needed. Only messages that are sent later, while
the coroutine waits for the next message, are written by a new task.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import grpc
import structlog
from grpc import aio

from epp.transport.credentials import Credentials
from epp.transport.errors import ListenError
from epp.transport.interface import HANDLER_FAULT, OpenStream, StatusCode, StreamHandler
from epp.transport.settings import Timeouts
from epp.transport.socket_file import REMEDY, SocketFile

log = structlog.get_logger(__name__)

_HIGH_WATER_BYTES = 1 << 20
"""Buffered response bytes at which a stream becomes unwritable."""

_CANCEL_ITERATIONS = 5
"""Iterations of the event loop to wait for a cancellation; 3 detected 29 of 30."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class _Stream:
    """The sending side of one call."""

    def __init__(self, context: aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context
        self._task = asyncio.current_task()
        self._outbox: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._was_full = False
        self._lock = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self.handler: StreamHandler | None = None
        self.status: tuple[int, str] | None = None
        self.fault: Exception | None = None
        self.is_reading = False
        self.is_woken = False
        self.is_gone = False
        self.may_read = asyncio.Event()
        """Cleared while reading is paused: messages stay in the C core, which closes its window."""
        self.may_read.set()

    @property
    def is_writable(self) -> bool:
        return self._buffered_bytes < _HIGH_WATER_BYTES

    def send(self, message: bytes) -> None:
        if self.is_gone or self.status is not None:
            return
        self._outbox.append(message)
        self._buffered_bytes += len(message)
        self._was_full = self._was_full or not self.is_writable
        if self.is_reading and self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_later(), name="grpcio-late-response")

    def finish(self, code: int = StatusCode.OK, message: str = "") -> None:
        if self.is_gone or self.status is not None:
            return
        self.status = (code, message)
        if self.is_reading and self._task is not None:
            # Wake the call's coroutine, which waits for the next message.
            self.is_woken = True
            self._task.cancel()

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    async def flush(self) -> None:
        """Write all buffered messages, including those that the handler sends in ``writable``."""
        if not self._outbox and not self._lock.locked():
            return
        async with self._lock:
            while self._outbox:
                message = self._outbox.popleft()
                await self._context.write(message)
                self._buffered_bytes -= len(message)
                if self._was_full and not self._outbox and self.handler is not None:
                    self._was_full = False
                    self.handler.writable()

    async def _flush_later(self) -> None:
        try:
            await self.flush()
        except (aio.BaseError, asyncio.InvalidStateError):
            self.is_gone = True  # the call's coroutine will notice when it reads
        except Exception as error:
            self.fault = error
            self.finish(StatusCode.INTERNAL, HANDLER_FAULT)
        finally:
            self._flusher = None


class GrpcioServer:
    """Serves bidirectional streaming methods with the gRPC C core."""

    def __init__(
        self,
        methods: Mapping[str, OpenStream],
        *,
        host: str = "0.0.0.0",  # noqa: S104 - a gateway on another host has to reach it
        port: int = 0,
        path: Path | None = None,
        max_message_bytes: int = 65 << 20,
        max_sent_message_bytes: int = 65 << 20,
        max_connections: int = 1024,
        credentials: Credentials | None = None,
    ) -> None:
        """Create the server; :meth:`start` makes it listen.

        Args:
            methods: Handlers by method path, ``/package.Service/Method``.
            host: Address to listen on.
            port: Port to listen on; 0 for any free one.
            path: Socket file to listen on instead.
            max_message_bytes: Limit on received messages.
            max_sent_message_bytes: Limit on sent messages; a longer one ends its stream instead.
            max_connections: Open connections; above it new ones are closed at once.
            credentials: For TLS, with the C core's versions and cipher suites; None for plaintext.
        """
        timeouts = Timeouts()
        self._credentials = credentials
        self._renewed: Credentials | None = None
        self._file = None if path is None else SocketFile(path)
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._file is not None:
            self._address = self._file.address
        self._methods = dict(methods)
        self._server: aio.Server | None = None
        self._options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_sent_message_bytes),
            ("grpc.max_allowed_incoming_connections", max_connections),
            ("grpc.server_handshake_timeout_ms", int(timeouts.preface_seconds * 1000)),
            ("grpc.max_connection_idle_ms", int(timeouts.idle_seconds * 1000)),
            ("grpc.so_reuseport", 0),  # a port in use is an error; do not share its traffic
        ]

    def use_credentials(self, credentials: Credentials) -> None:
        """Use other credentials for new connections; thread-safe."""
        self._renewed = credentials

    async def start(self) -> int:
        file = self._file
        if file is not None:
            # The C core would remove a socket file even if it is in use.
            await asyncio.to_thread(file.clear)
        server = aio.server(options=self._options)
        handlers: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {}
        for path, opened in self._methods.items():
            service, _, method = path.strip("/").rpartition("/")
            handlers.setdefault(service, {})[method] = grpc.stream_stream_rpc_method_handler(
                _call(opened)
            )
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(s, m) for s, m in handlers.items())
        )
        try:
            if self._credentials is None:
                port: int = server.add_insecure_port(self._address)
            else:
                port = server.add_secure_port(self._address, self._tls(self._credentials))
        except RuntimeError as error:
            # The C core does not report the reason.
            if file is not None:
                raise ListenError(self._address, "it cannot be bound", REMEDY) from error
            raise ListenError(self._address, "the port cannot be bound") from error
        self._server = server  # before any await: a cancelled start must be stopped, too
        if file is not None:
            await asyncio.to_thread(file.own)
        await server.start()
        return port if file is None else 0

    def _tls(self, credentials: Credentials) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            _configuration(credentials),
            self._take_renewed,
            require_client_authentication=bool(credentials.client_authorities),
        )

    def _take_renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new credentials, if any; called by the C core for each handshake."""
        renewed, self._renewed = self._renewed, None
        return None if renewed is None else _configuration(renewed)

    async def stop(self, grace_seconds: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_seconds)
        if self._file is not None:
            await asyncio.to_thread(self._file.remove)


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    pair = (credentials.certificate.key, credentials.certificate.chain)
    authorities = credentials.client_authorities.encode() or None
    return grpc.ssl_server_certificate_configuration([pair], authorities)


def _call(opened: OpenStream):  # type: ignore[no-untyped-def] # noqa: ANN202 - grpc's handler type
    async def call(_: object, context: aio.ServicerContext[bytes, bytes]) -> None:
        stream = _Stream(context)
        try:
            handler = opened(stream, dict(context.invocation_metadata() or ()))
            stream.handler = handler
        except Exception:
            log.exception("stream could not be opened")
            _end(context, StatusCode.INTERNAL, HANDLER_FAULT)
            return
        try:
            await _serve(stream, handler, context)
        except asyncio.CancelledError:
            if not stream.is_woken:
                _notify_reset(stream, handler)
                raise
            # finish() woke this coroutine; the task is not being cancelled from outside.
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            stream.is_reading = False
            with contextlib.suppress(aio.BaseError, asyncio.InvalidStateError):
                await stream.flush()
        except (aio.BaseError, asyncio.InvalidStateError):
            _notify_reset(stream, handler)  # the connection is lost, or the server has stopped
            return
        except Exception as error:
            stream.fault = error
        if stream.fault is not None:
            log.error("stream handler failed", exc_info=stream.fault)
            stream.status = None
            _notify_reset(stream, handler)
            _end(context, StatusCode.INTERNAL, HANDLER_FAULT)
            return
        _end(context, *(stream.status or (StatusCode.OK, "")))

    return call


def _end(context: aio.ServicerContext[bytes, bytes], code: int, message: str) -> None:
    if code != StatusCode.OK:
        context.set_code(_CODES[code])
        context.set_details(message)


def _notify_reset(stream: _Stream, handler: StreamHandler) -> None:
    """Call ``reset`` of the handler, unless it has ended the stream itself."""
    stream.is_gone = True
    if stream.status is None:
        try:
            handler.reset()
        except Exception:
            log.exception("stream handler failed")


async def _serve(
    stream: _Stream, handler: StreamHandler, context: aio.ServicerContext[bytes, bytes]
) -> None:
    await stream.flush()  # messages sent while the stream was opened
    while stream.status is None:
        stream.is_reading = True
        await stream.may_read.wait()
        data = await context.read()
        if data is aio.EOF:
            # grpc.aio also reports a cancelled call as half-closed, and cancels this task some
            # iterations of the event loop later. After that, the call was really half-closed.
            for _ in range(_CANCEL_ITERATIONS):
                await asyncio.sleep(0)
            stream.is_reading = False
            handler.half_closed()
            await stream.flush()
            if stream.status is None:
                stream.is_reading = True
                await asyncio.Event().wait()  # until finish() wakes this task
            return
        stream.is_reading = False
        handler.message(data)
        await stream.flush()
