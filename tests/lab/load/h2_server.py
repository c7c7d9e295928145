"""An HTTP/2 server of the library h2, with windows and limits that a client has to respect."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.settings

Headers = dict[str, str]
BODY = (
    b'{"id":"x","choices":[{"index":0,"text":"hi","finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":20,"completion_tokens":7}}'
)


@dataclass(slots=True, eq=False)
class H2Server:
    """What the connections of a server have in common."""

    respond: "Callable[[H2Connection, int], None]"
    max_streams: int = 100
    window: int = 65_535
    connections: int = 0
    peak_streams: int = 0
    requests: list[tuple[Headers, bytes]] = field(default_factory=list)
    resets: list[int] = field(default_factory=list)
    url: str = ""


class H2Connection(asyncio.Protocol):
    def __init__(self, server: H2Server) -> None:
        self.server = server
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._open: dict[int, tuple[Headers, bytearray]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections += 1
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: self.server.max_streams,
                codes.INITIAL_WINDOW_SIZE: self.server.window,
            },
        )
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                headers = {name.decode(): value.decode() for name, value in event.headers}
                self._open[event.stream_id] = (headers, bytearray())
                self.server.peak_streams = max(self.server.peak_streams, len(self._open))
            elif isinstance(event, h2.events.DataReceived):
                if event.stream_id in self._open:
                    self._open[event.stream_id][1].extend(event.data)
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                headers, body = self._open.pop(event.stream_id)
                self.server.requests.append((headers, bytes(body)))
                self.server.respond(self, event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self._open.pop(event.stream_id, None)
                self.server.resets.append(event.error_code)
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def send(self, stream_id: int, body: bytes, *, status: str = "200", **headers: str) -> None:
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        self.h2.send_headers(stream_id, [(":status", status), *named])
        self.h2.send_data(stream_id, body, end_stream=True)


def send_response(connection: H2Connection, stream_id: int) -> None:
    connection.send(stream_id, BODY, content_type="application/json", x_served_by="server-a")


@contextlib.asynccontextmanager
async def running(server: H2Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[H2Server]:
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: H2Connection(server), "127.0.0.1", 0, ssl=tls)
    async with listening:
        scheme = "http" if tls is None else "https"
        server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server
