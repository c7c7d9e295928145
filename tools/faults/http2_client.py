"""An HTTP/2 client on the h2 library: many streams per connection, each can be reset."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes

from tools.faults.asking import CLIENT_SECONDS, PATH, Request

WINDOW_BYTES = 1 << 24


class Stream:
    """One request, and the part of its response that has arrived."""

    def __init__(self, stream_id: int) -> None:
        self.id = stream_id
        self.status = 0
        self.body = bytearray()
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first bytes of the response's body have arrived, or the stream ended."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the stream has ended, with the reason of an early end, else ""."""

    def over(self, why: str = "") -> None:
        """End the stream; ``why`` is the reason of an early end."""
        if not self.began.done():
            self.began.set_result(None)
        if not self.ended.done():
            self.ended.set_result(why)


class Http2Client(asyncio.Protocol):
    """One connection; made by ``connected``."""

    def __init__(self) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._streams: dict[int, Stream] = {}
        self._has_window = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW_BYTES)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._has_window.set()
        for stream in self._streams.values():
            stream.over("the connection was lost")

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
                self._has_window.set()
            elif isinstance(event, h2.events.ConnectionTerminated):
                for stream in self._streams.values():
                    stream.over(f"GOAWAY {event.error_code}")
            else:
                self._of_a_stream(event)
        self._flush()

    def _of_a_stream(self, event: h2.events.Event) -> None:
        stream = self._streams.get(getattr(event, "stream_id", 0) or 0)
        if stream is None:
            return
        if isinstance(event, h2.events.ResponseReceived):
            # Text, because of header_encoding; h2's type of headers allows bytes only.
            stream.status = next(
                int(text) for name, text in event.headers if str(name) == ":status"
            )
        elif isinstance(event, h2.events.DataReceived):
            stream.body += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, stream.id)
            if not stream.began.done():
                stream.began.set_result(None)
        elif isinstance(event, h2.events.StreamReset):
            stream.over(f"RST_STREAM {event.error_code}")
        elif isinstance(event, h2.events.StreamEnded):
            stream.over()

    def begin(self, request: Request) -> Stream:
        """Open a stream with the headers of a request."""
        stream = Stream(self._h2.get_next_available_stream_id())
        self._streams[stream.id] = stream
        fields = {":method": "POST", ":scheme": "http", ":authority": "gateway", ":path": PATH}
        fields |= request.fields | {"content-length": str(len(request.body))}
        self._h2.send_headers(stream.id, list(fields.items()))
        self._flush()
        return stream

    async def send(self, stream: Stream, data: bytes, *, end: bool) -> None:
        """Send content as far as the windows allow; nothing once the stream has ended."""
        while data and not stream.ended.done():
            room = self._h2.local_flow_control_window(stream.id)
            size = min(room, self._h2.max_outbound_frame_size, len(data))
            if not size:
                self._has_window.clear()
                await self._has_window.wait()
                continue
            piece, data = data[:size], data[size:]
            self._h2.send_data(stream.id, piece, end_stream=end and not data)
            self._flush()

    def reset(self, stream: Stream) -> None:
        """End a stream with RST_STREAM, unless it has ended."""
        if not stream.ended.done():
            self._h2.reset_stream(stream.id, ErrorCodes.CANCEL)
            self._flush()
        stream.over("left")

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if self.transport is not None and data:
            self.transport.write(data)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Http2Client]:
    """Connect to the gateway, with a time limit for the whole block."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CLIENT_SECONDS):
        _, client = await loop.create_connection(Http2Client, "127.0.0.1", port)
        try:
            yield client
        finally:
            if client.transport is not None:
                client.transport.abort()
