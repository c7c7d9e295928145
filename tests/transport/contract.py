"""Test harness: both transports and event loops, a grpcio client, and a configurable handler."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
import uvloop
from grpc import aio

from epp.transport import Http2Server, OpenStream, Server, Stream
from epp.transport.grpcio import GrpcioServer

METHOD = "/test.Service/Talk"
KIB, MIB = 1 << 10, 1 << 20

Test = Callable[[], Awaitable[None]]
Transport = Literal["http2", "grpcio"]
Loop = Literal["asyncio", "uvloop"]


def is_grpc_poller_error(fault: Mapping[str, Any]) -> bool:
    """Return whether grpc.aio's poller failed, which is harmless.

    It happens when the poller is woken for a loop that is closed or was served by another thread.
    """
    error = fault.get("exception")
    return "PollerCompletionQueue._handle_events" in fault["message"] and (
        isinstance(error, BlockingIOError)
        or (isinstance(error, RuntimeError) and str(error) == "Event loop is closed")
    )


@dataclass
class Handler:
    """Records its calls and responds as the test wants."""

    stream: Stream
    headers: Mapping[str, str]
    on_message: Callable[["Handler", bytes], None]
    on_half_closed: Callable[["Handler"], None]
    on_writable: Callable[["Handler"], None]
    messages: list[bytes] = field(default_factory=list)
    half_closes: int = 0
    resets: int = 0
    writables: int = 0
    was_reset: asyncio.Event = field(default_factory=asyncio.Event)
    was_writable: asyncio.Event = field(default_factory=asyncio.Event)
    got_message: asyncio.Event = field(default_factory=asyncio.Event)

    def message(self, data: bytes) -> None:
        self.messages.append(data)
        self.got_message.set()
        self.on_message(self, data)

    def half_closed(self) -> None:
        self.half_closes += 1
        self.on_half_closed(self)

    def reset(self) -> None:
        self.resets += 1
        self.was_reset.set()

    def writable(self) -> None:
        self.writables += 1
        self.was_writable.set()
        self.on_writable(self)


@dataclass
class Service:
    """A server, a client channel and the handlers of all streams."""

    server: Server
    port: int
    channel: aio.Channel
    handlers: list[Handler]
    newly_opened: asyncio.Queue[Handler]

    def talk(self, method: str = METHOD, **options: Any) -> Any:
        return self.channel.stream_stream(method)(**options)


def echo(handler: Handler, data: bytes) -> None:
    handler.stream.send(data)


def finish(handler: Handler) -> None:
    handler.stream.finish()


def nothing(*_: object) -> None:
    pass


def later(call: Callable[..., object], *args: object) -> None:
    asyncio.get_running_loop().call_later(0.02, call, *args)


@dataclass(frozen=True)
class Rig:
    """One transport on one loop."""

    transport: Transport
    loop: Loop

    def run(self, test: Test) -> None:
        """Run a coroutine on the loop; fail on any logged error except grpc.aio's own."""
        factory = uvloop.new_event_loop if self.loop == "uvloop" else asyncio.new_event_loop

        async def limited() -> None:
            async with asyncio.timeout(18):
                await test()

        with asyncio.Runner(loop_factory=factory) as runner:
            faults: list[dict[str, Any]] = []
            runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
            runner.run(limited())
            assert [fault for fault in faults if not is_grpc_poller_error(fault)] == []

    def make_server(self, methods: Mapping[str, OpenStream], port: int = 0) -> Server:
        if self.transport == "http2":
            return Http2Server(methods, host="127.0.0.1", port=port)
        return GrpcioServer(methods, host="127.0.0.1", port=port)

    @asynccontextmanager
    async def serving(
        self,
        on_message: Callable[[Handler, bytes], None] = echo,
        on_half_closed: Callable[[Handler], None] = finish,
        on_writable: Callable[[Handler], None] = nothing,
        on_open: Callable[[Handler], None] = nothing,
        options: tuple[tuple[str, int], ...] = (),
    ) -> AsyncIterator[Service]:
        """Serve METHOD with handlers that respond as given."""
        handlers: list[Handler] = []
        newly_opened: asyncio.Queue[Handler] = asyncio.Queue()

        def opened(stream: Stream, headers: Mapping[str, str]) -> Handler:
            handler = Handler(stream, headers, on_message, on_half_closed, on_writable)
            handlers.append(handler)
            newly_opened.put_nowait(handler)
            on_open(handler)
            return handler

        server = self.make_server({METHOD: opened})
        port = await server.start()
        limits = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
        try:
            async with aio.insecure_channel(
                f"127.0.0.1:{port}", options=(*limits, *options)
            ) as channel:
                yield Service(server, port, channel, handlers, newly_opened)
        finally:
            await server.stop(0)


async def all_of(call: Any) -> tuple[list[bytes], grpc.StatusCode]:
    """Read a call to its end; return its messages and its status."""
    messages = []
    with contextlib.suppress(aio.AioRpcError):
        while (message := await call.read()) is not aio.EOF:
            messages.append(message)
    return messages, await call.code()
