"""Requests through a real Envoy, a small endpoint picker and small model servers.

The endpoint picker here speaks ext_proc with the messages of `envoy-data-plane`, so it shares no
code with ours and shows what the bootstrap does, not what our server does.
"""

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import pytest

from epp.lab.envoy import (
    DESTINATION_HEADER,
    EXT_PROC_STATS,
    Destination,
    EnvoyProcess,
    GatewayConfig,
    Mode,
)
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.envoy.names import SERVED_KEY

with warnings.catch_warnings():
    # The generated modules (2.2.0) raise pydantic's deprecations when they are imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core.v3 import HeaderValue, HeaderValueOption
    from envoy_data_plane.envoy.service.ext_proc.v3 import (
        BodyMutation,
        BodyResponse,
        CommonResponse,
        HeaderMutation,
        HeadersResponse,
        HttpHeaders,
        ProcessingRequest,
        ProcessingResponse,
        StreamedBodyResponse,
        TrailersResponse,
    )

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

DEAD = "127.0.0.1:1"
CHUNK_BYTES = 62_000
BIG_BODY = b"x" * 3_000_000


@dataclass
class ModelServer:
    """Answers every request with its address and the length of the request's body."""

    requests: list[dict[str, str]] = field(default_factory=list)
    """Headers of each request."""

    address: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                headers = await self._read_head(reader)
                self.requests.append(headers)
                length = len(await self._read_body(reader, headers))
                body = f"{self.address} {length}".encode()
                head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
                writer.write(head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
                await writer.drain()
        writer.close()

    async def _read_head(self, reader: asyncio.StreamReader) -> dict[str, str]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}

    async def _read_body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", "0")))
        body = bytearray()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return bytes(body)


@dataclass
class Picker:
    """An endpoint picker that always picks the same."""

    mode: Mode
    destination: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    """Headers of each request, as Envoy sent them."""

    served: list[Any] = field(default_factory=list)
    """The endpoint that served, as told with the headers of each response."""

    async def process(
        self, messages: AsyncIterator[ProcessingRequest], _context: object
    ) -> AsyncIterator[ProcessingResponse]:
        duplex = self.mode is not Mode.ADAPTIVE
        body = bytearray()
        async for message in messages:
            if message.request_headers is not None:
                self._note_request(message.request_headers)
                if not duplex or message.request_headers.end_of_stream:
                    yield self._picked()
            elif message.request_body is not None and not duplex:
                yield ProcessingResponse(request_body=BodyResponse(response=CommonResponse()))
            elif message.request_body is not None:
                body += message.request_body.body
                if message.request_body.end_of_stream:
                    yield self._picked()
                    for part in _streamed(bytes(body), end=True):
                        yield ProcessingResponse(request_body=part)
            elif message.response_headers is not None:
                self._note_served(message)
                yield ProcessingResponse(response_headers=HeadersResponse())
            elif message.response_body is not None:
                end = message.response_body.end_of_stream
                for part in _streamed(message.response_body.body, end=end):
                    yield ProcessingResponse(response_body=part)
            elif message.response_trailers is not None:
                yield ProcessingResponse(response_trailers=TrailersResponse())

    def _picked(self) -> ProcessingResponse:
        header = HeaderValue(key=DESTINATION_HEADER, raw_value=self.destination.encode())
        mutation = HeaderMutation(set_headers=[HeaderValueOption(header=header)])
        return ProcessingResponse(
            request_headers=HeadersResponse(response=CommonResponse(header_mutation=mutation))
        )

    def _note_request(self, sent: HttpHeaders) -> None:
        headers = sent.headers.headers if sent.headers else []
        self.requests.append({each.key: each.raw_value.decode() for each in headers})

    def _note_served(self, message: ProcessingRequest) -> None:
        context = message.metadata_context
        told = context.to_dict().get("filterMetadata", {}) if context else {}
        self.served.append(told.get("envoy.lb", {}).get(SERVED_KEY))


def _streamed(body: bytes, *, end: bool) -> Iterator[BodyResponse]:
    for start in range(0, len(body) or 1, CHUNK_BYTES):
        last = start + CHUNK_BYTES >= len(body)
        part = StreamedBodyResponse(
            body=body[start : start + CHUNK_BYTES], end_of_stream=end and last
        )
        mutation = BodyMutation(streamed_response=part)
        yield BodyResponse(response=CommonResponse(body_mutation=mutation))


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """The one method of the ext_proc service."""

    def __init__(self, picker: Picker) -> None:
        self._handler = grpc.stream_stream_rpc_method_handler(
            picker.process,
            request_deserializer=ProcessingRequest.parse,
            response_serializer=bytes,
        )

    def service(self, handler_call_details: Any) -> Any:
        assert handler_call_details.method == "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        return self._handler


@contextlib.asynccontextmanager
async def running_model_server(host: str = "127.0.0.1") -> AsyncIterator[ModelServer]:
    model_server = ModelServer()
    server = await asyncio.start_server(model_server.serve, host, 0)
    port = server.sockets[0].getsockname()[1]
    model_server.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with server:
        yield model_server


@contextlib.asynccontextmanager
async def running_picker(mode: Mode) -> AsyncIterator[tuple[Picker, int]]:
    picker = Picker(mode)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)])
    server.add_generic_rpc_handlers((_Handlers(picker),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield picker, port
    finally:
        await server.stop(grace=None)


@contextlib.asynccontextmanager
async def running_gateway(
    config: GatewayConfig,
) -> AsyncIterator[tuple[EnvoyProcess, httpx.AsyncClient]]:
    async with EnvoyProcess(render_yaml(config)) as envoy:
        host, port = await envoy.listener_address()
        base_url = f"http://{host}:{port}"
        async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=20) as client:
            yield envoy, client


async def assert_sound(envoy: EnvoyProcess, streams: int) -> None:
    """The counters of Envoy's ext_proc filter show `streams` streams and no fault."""
    counters = await envoy.stats(EXT_PROC_STATS)
    read = {name.removeprefix(EXT_PROC_STATS): value for name, value in counters.items()}
    assert read["streams_started"] == streams
    for fault in (
        "streams_failed",
        "spurious_msgs_received",
        "rejected_header_mutations",
        "message_timeouts",
    ):
        assert read[fault] == 0, fault


@pytest.mark.parametrize("destination", Destination)
@pytest.mark.parametrize("mode", Mode)
async def test_requests_reach_the_model_server_that_was_picked(
    mode: Mode, destination: Destination
) -> None:
    async with (
        running_model_server() as one,
        running_model_server() as other,
        running_picker(mode) as (picker, epp_port),
        running_gateway(
            GatewayConfig(
                mode=mode,
                destination=destination,
                endpoints=(one.address, other.address),
                listen_port=0,
                epp_port=epp_port,
            )
        ) as (envoy, client),
    ):
        bodies = (b"{}", BIG_BODY)  # the big one is above Envoy's own limit of 1 MiB
        for picked in (one, other):
            picker.destination = picked.address
            wanted = {DESTINATION_HEADER: "127.0.0.1:2", "x-request-id": "a-name"}
            for _ in range(2):
                answer = await client.get("/v1/models", headers=wanted)
                assert (answer.status_code, answer.text) == (200, f"{picked.address} 0")
            for body in bodies:
                answer = await client.post("/v1/completions", content=body, headers=wanted)
                assert (answer.status_code, answer.text) == (200, f"{picked.address} {len(body)}")
        await assert_sound(envoy, streams=8)

    assert len(picker.requests) == 8
    for seen in picker.requests:
        assert DESTINATION_HEADER not in seen, "the client's own header got through"
        assert seen["x-request-id"] == "a-name"
    if destination is Destination.OVERRIDE_HOST:
        assert picker.served == [one.address] * 4 + [other.address] * 4


@pytest.mark.parametrize("mode", Mode)
async def test_a_dead_endpoint_is_retried_down_the_list(mode: Mode) -> None:
    async with (
        running_model_server() as spare,
        running_model_server("::1") as alive,
        running_picker(mode) as (picker, epp_port),
        running_gateway(
            GatewayConfig(
                mode=mode,
                endpoints=(DEAD, spare.address, alive.address),
                listen_port=0,
                epp_port=epp_port,
            )
        ) as (envoy, client),
    ):
        picker.destination = f"{DEAD},{alive.address}"
        for _ in range(4):
            answer = await client.post("/v1/completions", content=BIG_BODY)
            assert (answer.status_code, answer.text) == (200, f"{alive.address} {len(BIG_BODY)}")
        await assert_sound(envoy, streams=4)
    assert picker.served == [alive.address] * 4
    assert spare.requests == []


async def test_a_body_above_the_limit_is_refused_in_adaptive_mode() -> None:
    async with (
        running_model_server() as server,
        running_picker(Mode.ADAPTIVE) as (picker, epp_port),
        running_gateway(
            GatewayConfig(
                mode=Mode.ADAPTIVE,
                endpoints=(server.address,),
                listen_port=0,
                epp_port=epp_port,
                buffer_limit_bytes=2_000_000,
            )
        ) as (_envoy, client),
    ):
        picker.destination = server.address
        assert (await client.post("/", content=b"x" * 1_900_000)).status_code == 200
        assert (await client.post("/", content=BIG_BODY)).status_code == 413


@pytest.mark.parametrize("fail_open", [True, False], ids=["open", "closed"])
async def test_without_an_endpoint_picker_the_client_does_not_steer(fail_open: bool) -> None:
    async with (
        running_model_server() as one,
        running_model_server() as other,
        running_gateway(
            GatewayConfig(
                mode=Mode.ADAPTIVE,
                endpoints=(one.address, other.address),
                listen_port=0,
                epp_port=1,
                fail_open=fail_open,
            )
        ) as (_envoy, client),
    ):
        for _ in range(4):
            answer = await client.post(
                "/", content=b"{}", headers={DESTINATION_HEADER: other.address}
            )
            assert answer.status_code == (200 if fail_open else 500)
    assert len(one.requests) == len(other.requests) == (2 if fail_open else 0)
    assert not any(DESTINATION_HEADER in seen for seen in one.requests + other.requests)
