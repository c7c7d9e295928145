"""Requests and responses that end with trailers, in every pair of body modes, through a real Envoy.

One Envoy has a route for each pair, with the trailers sent to the endpoint picker and without.
"""

import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from itertools import product
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from conformance.echo import Echo, EchoServer
from conformance.gateways import (
    ANY,
    BODY,
    Json,
    PoolGateway,
    ext_proc_in,
    manager_in,
    running_gateway,
    running_pool,
)

from epp.lab.envoy import ModelServerProtocol

from .test_body_modes import MODES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

DUPLEX = "FULL_DUPLEX_STREAMED"


class Way(NamedTuple):
    """How a route has its messages sent to the endpoint picker."""

    request: str
    response: str
    trailers: str
    """SEND or SKIP, both of the request and of the response; Envoy takes no SKIP in full duplex."""

    @property
    def path(self) -> str:
        """Where the route is."""
        return f"/{self.request}/{self.response}/{self.trailers}"

    @property
    def processing_mode(self) -> Json:
        """What the route sets."""
        return {
            "request_header_mode": "SEND",
            "request_body_mode": self.request,
            "request_trailer_mode": "SEND" if self.request == DUPLEX else self.trailers,
            "response_header_mode": "SEND",
            "response_body_mode": self.response,
            "response_trailer_mode": "SEND" if self.response == DUPLEX else self.trailers,
        }


TRAILERS_UNANNOUNCED = {"STREAMED", "BUFFERED_PARTIAL"}
"""Modes in which Envoy sends trailers when the body has been answered, and of that no end."""

WAYS = [
    Way(*each)
    for each in product(MODES, MODES, ("SEND", "SKIP"))
    if each != (DUPLEX, DUPLEX, "SKIP")
]
REFUSED = [Way("GRPC", "NONE", "SEND"), Way("NONE", "GRPC", "SEND")]


def add_ways(document: Json) -> None:
    """Give every way a route, and let trailers through Envoy."""
    manager = manager_in(document)
    manager["http_protocol_options"] = {"enable_trailers": True}
    ext_proc_in(document)["send_body_without_waiting_for_header_response"] = True
    (host,) = manager["route_config"]["virtual_hosts"]
    (everything,) = host["routes"]
    host["routes"] = []
    for way in (*WAYS, *REFUSED):
        route = deepcopy(everything)
        route["match"] = {"prefix": f"{way.path}/"}
        (target,) = route["route"]["weighted_clusters"]["clusters"]
        (per_filter,) = target["typed_per_filter_config"].values()
        per_filter["overrides"]["processing_mode"] = way.processing_mode
        host["routes"].append(route)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[PoolGateway]:
    servers = [EchoServer() for _ in range(2)]
    h2c = ModelServerProtocol.H2C
    async with (
        running_pool(*servers, config=ANY, protocol=h2c) as pool,
        # With retries Envoy sends some bodies twice: see the last test.
        running_gateway({"any": pool}, edit=add_ways, retries=0) as made,
    ):
        yield made
        await made.assert_untouched()


async def post(gateway: PoolGateway, way: Way, *, trailers: bool) -> tuple[int, bytes, bytes]:
    """Send a body in two chunks; return status, body and trailers of the response."""
    url = gateway.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {way.path}/v1/completions HTTP/1.1\r\nhost: any.test\r\n"
    writer.write(f"{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode())
    for chunk in (BODY[:20], BODY[20:]):
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    writer.write(b"0\r\nx-checksum: 17\r\n\r\n" if trailers else b"0\r\n\r\n")
    async with asyncio.timeout(10):
        response = await reader.read()
    writer.close()
    response_head, _, rest = response.partition(b"\r\n\r\n")
    status = int(response_head.split()[1])
    if b"transfer-encoding: chunked" not in response_head.lower():
        return status, rest, b""
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return status, body, rest
        body, rest = body + rest[:length], rest[length + 2 :]


@pytest.mark.parametrize("way", WAYS, ids="/".join)
async def test_a_message_without_trailers_arrives_whole(gateway: PoolGateway, way: Way) -> None:
    status, body, end = await post(gateway, way, trailers=False)
    assert status == 200, body
    echo = msgspec.json.decode(body, type=Echo)
    assert (echo.body, echo.trailers, end) == (BODY.decode(), {}, b"\r\n")
    await gateway.assert_untouched()


@pytest.mark.parametrize(
    "way", [way for way in WAYS if way.request not in TRAILERS_UNANNOUNCED], ids="/".join
)
async def test_a_message_with_trailers_arrives_whole(gateway: PoolGateway, way: Way) -> None:
    status, body, end = await post(gateway, way, trailers=True)
    assert status == 200, body
    echo = msgspec.json.decode(body, type=Echo)
    assert (echo.body, echo.trailers) == (BODY.decode(), {"x-checksum": "17"})
    assert end == b"x-checksum: 17\r\n\r\n"
    await gateway.assert_untouched()


@pytest.mark.parametrize(
    "way", [way for way in WAYS if way.request == "BUFFERED_PARTIAL"], ids="/".join
)
async def test_a_partial_body_with_trailers_looks_cut_off(gateway: PoolGateway, way: Way) -> None:
    status, body, _ = await post(gateway, way, trailers=True)
    assert status == 413
    assert b"or has trailers" in body
    await gateway.assert_untouched()


@pytest.mark.parametrize("way", REFUSED, ids="/".join)
async def test_mode_grpc_is_refused_with_what_to_change(gateway: PoolGateway, way: Way) -> None:
    status, body, _ = await post(gateway, way, trailers=False)
    assert status == 500
    assert b"mode GRPC; set processing_mode." in body
    await gateway.assert_untouched()


async def test_a_streamed_body_with_trailers_hangs_until_the_message_timeout() -> None:
    def edit(document: Json) -> None:
        add_ways(document)
        ext_proc_in(document).update(message_timeout="1s", max_message_timeout="1s")

    async with (
        running_pool(EchoServer(), config=ANY, protocol=ModelServerProtocol.H2C) as pool,
        running_gateway({"any": pool}, edit=edit) as gateway,
    ):
        status, _, _ = await post(gateway, Way("STREAMED", "NONE", "SEND"), trailers=True)
        assert status == 504
        await pool.picker.settled()
        pool.picker.assert_untouched()


async def test_envoy_sends_a_body_with_trailers_twice_where_it_may_retry() -> None:
    # envoy#45470: what the router keeps for a retry is sent on once more with the trailers. When
    # this fails, Envoy has been mended: take the doctor's check `retry-trailers` out.
    config: dict[str, Any] = {"config": ANY, "protocol": ModelServerProtocol.H2C}
    way = Way(DUPLEX, "NONE", "SEND")
    async with (
        running_pool(EchoServer(), **config) as pool,
        running_gateway({"any": pool}, edit=add_ways) as gateway,
    ):
        _, body, _ = await post(gateway, way, trailers=True)
        assert msgspec.json.decode(body, type=Echo).body == 2 * BODY.decode()
        _, body, _ = await post(gateway, way, trailers=False)
        assert msgspec.json.decode(body, type=Echo).body == BODY.decode()
        _, body, _ = await post(gateway, Way("BUFFERED", "NONE", "SEND"), trailers=True)
        assert msgspec.json.decode(body, type=Echo).body == BODY.decode()
