"""Requests through a real Envoy, a small endpoint picker and small model servers.

The endpoint picker here speaks ext_proc with the messages of `envoy-data-plane`, so it shares no
code with ours and shows what the bootstrap does, not what our server does.
"""

import asyncio
import contextlib
import json
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from data_layer.certificates import Authority, make_ca, make_leaf
from lab.envoy.h2c_server import running_h2c_server

from epp.lab.envoy import (
    DESTINATION_HEADER,
    EXT_PROC_STATS,
    Destination,
    EnvoyProcess,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
)
from epp.lab.envoy.access_log import fields
from epp.lab.envoy.bootstrap import bootstrap, render_yaml
from epp.lab.envoy.names import (
    DESTINATION_NAMESPACE,
    EPP_CLUSTER,
    EPP_LARGE_REQUESTS_CLUSTER,
    SERVED_HEADER,
    SERVED_KEY,
    STEERING_HEADERS,
    SUBSET_NAMESPACE,
)

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
    from envoy_data_plane.google.protobuf import Struct

pytestmark = pytest.mark.integration

DEAD = "127.0.0.1:1"
CHUNK_BYTES = 62_000
BIG_BODY = b"x" * 3_000_000

FORGED = {*STEERING_HEADERS, *(name.replace("-", "_") for name in STEERING_HEADERS)}
"""Headers with which a client tries to choose servers."""


SUBSET_FROM_HEADER = {
    "name": "envoy.filters.http.header_to_metadata",
    "typed_config": {
        "@type": ("type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"),
        "request_rules": [
            {
                "header": "x-subset",
                "on_header_present": {
                    "metadata_namespace": SUBSET_NAMESPACE,
                    "key": "x-gateway-destination-endpoint-subset",
                },
            }
        ],
    },
}


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

    in_metadata_only: bool = False
    """Tell the destination in the dynamic metadata and not in a header."""

    thinks_seconds: float = 0.0
    """How long it takes to pick."""

    hints: list[Any] = field(default_factory=list)
    """The subset that Envoy's metadata names, for each request."""

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
                self.hints.append(_metadata(message).get(SUBSET_NAMESPACE))
                if not duplex or message.request_headers.end_of_stream:
                    await asyncio.sleep(self.thinks_seconds)
                    yield self._picked()
            elif message.request_body is not None and not duplex:
                await asyncio.sleep(self.thinks_seconds)
                yield ProcessingResponse(request_body=BodyResponse(response=CommonResponse()))
            elif message.request_body is not None:
                body += message.request_body.body
                if message.request_body.end_of_stream:
                    await asyncio.sleep(self.thinks_seconds)
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
        if self.in_metadata_only:
            metadata = {DESTINATION_NAMESPACE: {DESTINATION_HEADER: self.destination}}
            return ProcessingResponse(
                request_headers=HeadersResponse(), dynamic_metadata=Struct.from_dict(metadata)
            )
        header = HeaderValue(key=DESTINATION_HEADER, raw_value=self.destination.encode())
        mutation = HeaderMutation(set_headers=[HeaderValueOption(header=header)])
        return ProcessingResponse(
            request_headers=HeadersResponse(response=CommonResponse(header_mutation=mutation))
        )

    def _note_request(self, sent: HttpHeaders) -> None:
        headers = sent.headers.headers if sent.headers else []
        self.requests.append({each.key: each.raw_value.decode() for each in headers})

    def _note_served(self, message: ProcessingRequest) -> None:
        self.served.append(_metadata(message).get(DESTINATION_NAMESPACE, {}).get(SERVED_KEY))


def _metadata(message: ProcessingRequest) -> dict[str, Any]:
    context = message.metadata_context
    metadata: dict[str, Any] = context.to_dict().get("filterMetadata", {}) if context else {}
    return metadata


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


def make_credentials(authority: Authority, folder: Path, address: str) -> grpc.ServerCredentials:
    chain, key = make_leaf(authority, folder, address=address)
    return grpc.ssl_server_credentials([(key.read_bytes(), chain.read_bytes())])


@contextlib.asynccontextmanager
async def running_model_server(host: str = "127.0.0.1") -> AsyncIterator[ModelServer]:
    model_server = ModelServer()
    server = await asyncio.start_server(model_server.serve, host, 0)
    port = server.sockets[0].getsockname()[1]
    model_server.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with server:
        yield model_server


@contextlib.asynccontextmanager
async def running_picker(
    mode: Mode,
    address: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[tuple[Picker, int]]:
    picker = Picker(mode)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)])
    server.add_generic_rpc_handlers((_Handlers(picker),))
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield picker, port
    finally:
        await server.stop(grace=None)


@contextlib.asynccontextmanager
async def running_gateway(
    config: GatewayConfig | str,
) -> AsyncIterator[tuple[EnvoyProcess, httpx.AsyncClient]]:
    text = config if isinstance(config, str) else render_yaml(config)
    async with EnvoyProcess(text) as envoy:
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
            wanted = dict.fromkeys(FORGED, "127.0.0.1:2") | {"x-request-id": "a-name"}
            for _ in range(2):
                response = await client.get("/v1/models", headers=wanted)
                assert (response.status_code, response.text) == (200, f"{picked.address} 0")
                assert SERVED_HEADER not in response.headers
            for body in bodies:
                response = await client.post("/v1/completions", content=body, headers=wanted)
                assert (response.status_code, response.text) == (
                    200,
                    f"{picked.address} {len(body)}",
                )
        await assert_sound(envoy, streams=8)

    assert len(picker.requests) == 8
    for seen in picker.requests:
        assert seen.keys().isdisjoint(FORGED), "a client's own header got through"
        assert seen["x-request-id"] == "a-name"
    for reached in one.requests + other.requests:
        assert reached.keys() & FORGED == {DESTINATION_HEADER}
    assert picker.served == [one.address] * 4 + [other.address] * 4


@pytest.mark.parametrize("mode", Mode)
async def test_large_requests_have_connections_of_their_own_to_the_endpoint_picker(
    mode: Mode,
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{}"

    at_limit, above = b"x" * 65_536, b"x" * 65_537
    compressed = {"content-encoding": "zstd"}
    cases: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({"content": b""}, (1, 0)),
        ({"content": at_limit}, (1, 0)),
        ({"content": above}, (0, 1)),
        ({"content": b"{}", "headers": compressed}, (0, 1)),
        ({"content": chunks()}, (0, 1)),  # of unknown length
    ]
    async with (
        running_model_server() as one,
        running_picker(mode) as (picker, epp_port),
        running_gateway(
            GatewayConfig(mode=mode, endpoints=(one.address,), listen_port=0, epp_port=epp_port)
        ) as (envoy, client),
    ):
        picker.destination = one.address
        was = (0, 0)
        for request, added in cases:
            response = await client.post("/v1/completions", **request)
            assert response.status_code == 200
            stats = await envoy.stats("cluster.epp")
            small = stats[f"cluster.{EPP_CLUSTER}.upstream_rq_total"]
            large = stats[f"cluster.{EPP_LARGE_REQUESTS_CLUSTER}.upstream_rq_total"]
            assert (small - was[0], large - was[1]) == added, request
            was = (small, large)
        await assert_sound(envoy, streams=len(cases))


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
            response = await client.post("/v1/completions", content=BIG_BODY)
            assert (response.status_code, response.text) == (
                200,
                f"{alive.address} {len(BIG_BODY)}",
            )
        await assert_sound(envoy, streams=4)
    assert picker.served == [alive.address] * 4
    assert spare.requests == []


async def test_original_dst_takes_no_list() -> None:
    async with (
        running_model_server() as one,
        running_model_server() as other,
        running_picker(Mode.LEAN) as (picker, epp_port),
        running_gateway(
            GatewayConfig(destination=Destination.ORIGINAL_DST, listen_port=0, epp_port=epp_port)
        ) as (_envoy, client),
    ):
        picker.destination = f"{one.address},{other.address}"
        assert (await client.post("/", content=b"{}")).status_code == 503
        picker.destination = other.address
        assert (await client.post("/", content=b"{}")).text == f"{other.address} 2"
    assert one.requests == []


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
            response = await client.post(
                "/", content=b"{}", headers={DESTINATION_HEADER: other.address}
            )
            assert response.status_code == (200 if fail_open else 500)
    assert len(one.requests) == len(other.requests) == (2 if fail_open else 0)
    assert not any(DESTINATION_HEADER in seen for seen in one.requests + other.requests)


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
async def test_the_endpoint_picker_is_reached_through_a_unix_socket(
    tls: bool, tmp_path: Path
) -> None:
    path = str(tmp_path / "ext-proc.sock")
    credentials = make_credentials(make_ca(), tmp_path, "127.0.0.1") if tls else None
    async with (
        running_model_server() as server,
        running_picker(Mode.LEAN, f"unix:{path}", credentials) as (picker, _),
        running_gateway(
            GatewayConfig(endpoints=(server.address,), listen_port=0, epp_socket=path, epp_tls=tls)
        ) as (envoy, client),
    ):
        picker.destination = server.address
        response = await client.post("/", content=b"{}")
        assert (response.status_code, response.text) == (200, f"{server.address} 2")
        await assert_sound(envoy, streams=1)


@pytest.mark.parametrize(
    ("named", "status"), [("127.0.0.1", 200), ("127.0.0.2", 500)], ids=["named", "another name"]
)
async def test_a_verified_certificate_must_name_the_endpoint_picker(
    named: str, status: int, tmp_path: Path
) -> None:
    authority = make_ca()
    authorities = tmp_path / "ca.crt"
    authorities.write_bytes(authority.pem)
    credentials = make_credentials(authority, tmp_path, named)
    async with (
        running_model_server() as server,
        running_picker(Mode.LEAN, credentials=credentials) as (picker, port),
        running_gateway(
            GatewayConfig(
                endpoints=(server.address,),
                listen_port=0,
                epp_port=port,
                epp_tls=True,
                epp_ca_file=str(authorities),
            )
        ) as (_envoy, client),
    ):
        picker.destination = server.address
        assert (await client.post("/", content=b"{}")).status_code == status


@pytest.mark.parametrize(("shown", "status"), [(True, 200), (False, 500)], ids=["shown", "none"])
async def test_an_endpoint_picker_may_ask_for_the_certificate_of_envoy(
    shown: bool, status: int, tmp_path: Path
) -> None:
    authority = make_ca()
    chain, key = make_leaf(authority, tmp_path, address="127.0.0.1")
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), chain.read_bytes())], authority.pem, require_client_auth=True
    )
    async with (
        running_model_server() as server,
        running_picker(Mode.LEAN, credentials=credentials) as (picker, port),
        running_gateway(
            GatewayConfig(
                endpoints=(server.address,),
                listen_port=0,
                epp_port=port,
                epp_tls=True,
                epp_client_certificate_file=str(chain) if shown else "",
                epp_client_key_file=str(key) if shown else "",
            )
        ) as (_envoy, client),
    ):
        picker.destination = server.address
        assert (await client.post("/", content=b"{}")).status_code == status


async def test_metadata_goes_to_the_endpoint_picker_and_comes_from_it() -> None:
    async with (
        running_model_server() as one,
        running_model_server() as other,
        running_picker(Mode.ADAPTIVE) as (picker, epp_port),
    ):
        document = bootstrap(
            GatewayConfig(
                mode=Mode.ADAPTIVE,
                endpoints=(one.address, other.address),
                listen_port=0,
                epp_port=epp_port,
            )
        )
        (chain,) = document["static_resources"]["listeners"][0]["filter_chains"]
        # What a gateway does that knows of subsets, as a header of the client.
        chain["filters"][0]["typed_config"]["http_filters"].insert(0, SUBSET_FROM_HEADER)
        async with running_gateway(json.dumps(document)) as (envoy, client):
            picker.in_metadata_only = True
            picker.destination = other.address
            for _ in range(2):
                response = await client.post("/", content=b"{}", headers={"x-subset": "a,b"})
                assert response.text == f"{other.address} 2"
            await assert_sound(envoy, streams=2)
    assert picker.hints == [{"x-gateway-destination-endpoint-subset": "a,b"}] * 2


async def test_model_servers_may_speak_http2_without_tls() -> None:
    async with (
        running_h2c_server() as (address, paths),
        running_picker(Mode.LEAN) as (picker, epp_port),
        running_gateway(
            GatewayConfig(
                endpoints=(address,),
                endpoint_protocol=ModelServerProtocol.H2C,
                listen_port=0,
                epp_port=epp_port,
            )
        ) as (envoy, client),
    ):
        picker.destination = address
        responses = [await client.post("/v1/completions", content=b"{}") for _ in range(2)]
        assert [response.text for response in responses] == ["over HTTP/2"] * 2
        await assert_sound(envoy, streams=2)
    assert paths == ["/v1/completions"] * 2


@pytest.mark.parametrize(
    ("keeps", "framing"),
    [
        pytest.param(False, {"transfer-encoding": "chunked"}, id="in chunks"),
        pytest.param(True, {"content-length": str(len(BIG_BODY))}, id="with its length"),
    ],
)
async def test_lean_mode_sends_a_body_in_chunks_or_with_its_length(
    keeps: bool, framing: dict[str, str]
) -> None:
    async with (
        running_model_server() as server,
        running_picker(Mode.LEAN) as (picker, epp_port),
        running_gateway(
            GatewayConfig(
                endpoints=(server.address,),
                listen_port=0,
                epp_port=epp_port,
                keep_content_length=keeps,
            )
        ) as (envoy, client),
    ):
        picker.destination = server.address
        response = await client.post("/v1/completions", content=BIG_BODY)
        assert response.text == f"{server.address} {len(BIG_BODY)}"
        await assert_sound(envoy, streams=1)
    (headers,) = server.requests
    assert {
        name: value
        for name, value in headers.items()
        if name in {"transfer-encoding", "content-length"}
    } == framing


async def test_each_request_is_a_line_of_the_access_log(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with (
        running_model_server() as server,
        running_picker(Mode.LEAN) as (picker, epp_port),
        running_gateway(
            GatewayConfig(
                endpoints=(server.address,),
                listen_port=0,
                epp_port=epp_port,
                access_log=str(file),
            )
        ) as (_, client),
    ):
        picker.destination = server.address
        await client.post(
            "/v1/completions?key=secret", content=b"{}", headers={"x-request-id": "r"}
        )
    (line,) = (json.loads(each) for each in file.read_text().splitlines())
    assert line.keys() == fields().keys()
    assert (line["request_id"], line["method"], line["path"]) == ("r", "POST", "/v1/completions")
    assert (line["status"], line["endpoint"], line["request_bytes"]) == (200, server.address, 2)
    assert line["flags"] == "-"
    assert "secret" not in json.dumps(line)
