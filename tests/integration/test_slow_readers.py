"""Clients that do not read their responses: Envoy buffers a bounded amount for each.

Envoy's own count of the bytes that it has allocated is looked at, when it has stopped reading every
response; the time does not matter.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import httpx
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from epp.lab.envoy import EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.envoy.names import MODEL_SERVERS_CLUSTER
from tools.harness.gateway import MODES, picking

pytestmark = pytest.mark.integration

CLIENTS = 16
RESPONSE_BYTES = 48 << 20
"""More than Envoy and the kernel would hold of one, with Envoy's own limits."""

HELD_BYTES = 4 << 20
"""Per client. Of Envoy's own limits the window of an HTTP/2 stream is 16 MiB."""

STILL_LOOKS = 10

BODY = b'{"model": "tiny", "prompt": "Hello", "stream": true}'
METRICS = (
    b"# TYPE vllm:num_requests_waiting gauge\n"
    b'vllm:num_requests_waiting{model_name="tiny"} 0.0\n'
    b'vllm:num_requests_running{model_name="tiny"} 0.0\n'
    b'vllm:kv_cache_usage_perc{model_name="tiny"} 0.25\n'
)


@dataclass(frozen=True)
class Server:
    """A model server whose responses are long."""

    addresses: tuple[str, ...]


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    piece = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /metrics "):
                length = b"content-length: %d\r\n\r\n" % len(METRICS)
                writer.write(b"HTTP/1.1 200 OK\r\n" + length + METRICS)
                continue
            await reader.readuntil(BODY[-8:])
            size = RESPONSE_BYTES if b"x-small" not in head else len(piece)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(0, size, len(piece)):
                writer.write(piece)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@asynccontextmanager
async def running_gateway(mode: Mode) -> AsyncIterator[EnvoyProcess]:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    async with server, picking(Server((address,))) as picker:
        config = GatewayConfig(
            mode=mode, endpoints=(address,), listen_port=0, epp_port=picker.ports.grpc or 0
        )
        text = await asyncio.to_thread(render_yaml, config)
        async with EnvoyProcess(text) as envoy:
            yield envoy


def _connected(host: str, port: int) -> socket.socket:
    """A connection whose kernel takes little, so that it is Envoy that has to hold the rest."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    made.connect((host, port))
    return made


def ask_over_http1(host: str, port: int) -> list[socket.socket]:
    """Ask on connections of their own, and read nothing."""
    made = [_connected(host, port) for _ in range(CLIENTS)]
    for each in made:
        length = b"content-length: %d\r\n\r\n" % len(BODY)
        each.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + length + BODY)
    return made


def ask_over_http2(host: str, port: int) -> list[socket.socket]:
    """Ask on streams of one connection, whose windows are never opened."""
    made = _connected(host, port)
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    made.sendall(client.data_to_send())
    for number in range(CLIENTS):
        stream = 2 * number + 1
        headers = {":method": "POST", ":path": "/v1/completions", ":scheme": "http"}
        client.send_headers(stream, [*headers.items(), (":authority", "x")])
        client.send_data(stream, BODY, end_stream=True)
    made.sendall(client.data_to_send())
    return [made]


async def held_at_last(envoy: EnvoyProcess, before: int) -> int:
    """Return what Envoy holds when nothing moves: it reads none of the responses any more."""
    prefix = f"cluster.{MODEL_SERVERS_CLUSTER}.upstream_flow_control_"
    still, last = 0, (0, 0)
    async with asyncio.timeout(60):
        while still < STILL_LOOKS:
            stats = await envoy.stats(prefix)
            paused = stats[f"{prefix}paused_reading_total"]
            resumed = stats[f"{prefix}resumed_reading_total"]
            # In full duplex it pauses on the way, too, while the endpoint picker has its turn.
            is_still = paused - resumed == CLIENTS and last == (paused, resumed)
            still, last = still + 1 if is_still else 0, (paused, resumed)
            await asyncio.sleep(0.05)
    return await allocated_bytes(envoy) - before


async def allocated_bytes(envoy: EnvoyProcess) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        memory = (await client.get(f"{envoy.admin_url}/memory")).json()
    return int(memory["allocated"])


@pytest.mark.parametrize("protocol", ["http1", "http2"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
async def test_what_envoy_holds_of_a_response_is_bounded(
    mode: Mode, protocol: Literal["http1", "http2"]
) -> None:
    ask = ask_over_http1 if protocol == "http1" else ask_over_http2
    async with running_gateway(mode) as envoy, AsyncExitStack() as stack:
        host, port = await envoy.listener_address()
        before = await allocated_bytes(envoy)
        for each in await asyncio.to_thread(ask, host, port):
            stack.callback(each.close)
        assert await held_at_last(envoy, before) < CLIENTS * HELD_BYTES

        # Others are served beside them.
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            response = await client.post(
                f"http://{host}:{port}/v1/completions", content=BODY, headers={"x-small": "1"}
            )
        assert response.status_code == 200
