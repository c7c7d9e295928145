"""Many streams, long messages, disconnecting clients: grpcio's client (C core), without Envoy."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from epp.app import Transport
from epp.ext_proc import METHOD
from epp.lab.fleet import Fleet, FleetConfig
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import FULL_DUPLEX, POST, echoed, http_headers
from tools.harness.gateway import Picker, picking, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

KB, MB = 1000, 1_000_000
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def request_headers() -> pb.ProcessingRequest:
    config = pb.ProtocolConfiguration(
        request_body_mode=FULL_DUPLEX[0], response_body_mode=FULL_DUPLEX[1]
    )
    headers = http_headers(POST, end=False)
    return pb.ProcessingRequest(request_headers=headers, protocol_config=config)


@dataclass(slots=True)
class Client:
    """An endpoint picker and a channel to it."""

    picker: Picker
    channel: aio.Channel
    exchanges: list["Exchange"] = field(default_factory=list)
    """Those of the current test."""

    def call(self, timeout_seconds: float | None = None) -> "Exchange":
        """Open a stream."""
        method = self.channel.stream_stream(
            METHOD,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        exchange = Exchange(method(timeout=timeout_seconds))
        self.exchanges.append(exchange)
        return exchange


@dataclass(slots=True)
class Exchange:
    """One HTTP request in full duplex, step by step, as Envoy tells of it."""

    call: Any

    async def request_headers(self) -> None:
        await self.call.write(request_headers())

    async def half_a_body(self) -> None:
        body = pb.HttpBody(body=b'{"model": "tiny", ')
        await self.call.write(pb.ProcessingRequest(request_body=body))

    async def rest_of_the_body(self, prompt: str = "x") -> None:
        body = pb.HttpBody(body=b'"prompt": "%s"}' % prompt.encode(), end_of_stream=True)
        await self.call.write(pb.ProcessingRequest(request_body=body))

    async def routed(self) -> None:
        assert (await self.call.read()).WhichOneof("response") == "request_headers"
        assert (await self.call.read()).WhichOneof("response") == "request_body"

    async def response_headers(self) -> None:
        headers = http_headers({":status": "200"}, end=False)
        await self.call.write(pb.ProcessingRequest(response_headers=headers))
        assert (await self.call.read()).WhichOneof("response") == "response_headers"

    async def response_chunk(self) -> None:
        body = pb.HttpBody(body=b"data: x\n\n")
        await self.call.write(pb.ProcessingRequest(response_body=body))
        assert echoed([await self.call.read()], "response_body") == (b"data: x\n\n", [False])

    async def response_end(self) -> None:
        body = pb.HttpBody(end_of_stream=True)
        await self.call.write(pb.ProcessingRequest(response_body=body))
        assert echoed([await self.call.read()], "response_body") == (b"", [True])

    async def close(self) -> None:
        await self.call.done_writing()
        assert await self.call.read() is aio.EOF
        assert await self.call.code() is grpc.StatusCode.OK


Step = Callable[[Exchange], Awaitable[None]]

PHASES: tuple[Step, ...] = (
    Exchange.request_headers,
    Exchange.half_a_body,
    Exchange.rest_of_the_body,
    Exchange.routed,
    Exchange.response_headers,
    Exchange.response_chunk,
    Exchange.response_end,
)

after_each_phase = pytest.mark.parametrize(
    "steps",
    [PHASES[:n] for n in range(len(PHASES) + 1)],
    ids=["opened", *(step.__name__ for step in PHASES)],
)


@pytest_asyncio.fixture(loop_scope="module")
async def client(shared_client: Client) -> AsyncIterator[Client]:
    yield shared_client
    for exchange in shared_client.exchanges:
        exchange.call.cancel()  # for what a failed test has left open
    shared_client.exchanges.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_client(transport: Transport) -> AsyncIterator[Client]:
    fleet = FleetConfig(endpoints=3, time_scale=0.05)
    async with Fleet(fleet) as servers, picking(servers, transport=transport) as picker:
        target = f"127.0.0.1:{picker.ports.grpc}"
        async with aio.insecure_channel(target, options=_UNLIMITED) as channel:
            yield Client(picker, channel)


async def take(exchange: Exchange, steps: tuple[Step, ...]) -> Exchange:
    for step in steps:
        await step(exchange)
    return exchange


async def taken(
    client: Client, count: int, steps: tuple[Step, ...], **options: Any
) -> list[Exchange]:
    """Take ``steps`` on ``count`` streams at once; return them when the EPP has seen as much."""
    exchanges = await asyncio.gather(*(take(client.call(**options), steps) for _ in range(count)))
    await until(lambda: client.picker.open_streams() == count * is_open(steps))
    await until(lambda: client.picker.in_flight() == count * is_reserved(steps))
    return exchanges


def is_open(steps: tuple[Step, ...]) -> bool:
    return Exchange.response_end not in steps


def is_reserved(steps: tuple[Step, ...]) -> bool:
    return is_open(steps) and Exchange.rest_of_the_body in steps


@pytest.mark.parametrize("count", [1, 600])
async def test_streams_at_once_are_all_served_to_their_end(client: Client, count: int) -> None:
    exchanges = await taken(client, count, PHASES[:-1])
    await asyncio.gather(*(take(each, (PHASES[-1], Exchange.close)) for each in exchanges))
    await client.picker.settled()
    client.picker.assert_untouched()


@pytest.mark.parametrize(
    ("length", "count"),
    [(KB, 1), (16 * KB, 8), (400 * KB, 8), (12 * MB, 2)],
    ids=["1 KB", "8 of 16 KB", "8 of 400 KB", "2 of 12 MB"],
)
async def test_a_message_of_any_length_is_given_back_whole(
    client: Client, length: int, count: int
) -> None:
    async def converse(letter: str) -> None:
        exchange = client.call()
        await exchange.request_headers()
        await exchange.half_a_body()
        await exchange.rest_of_the_body(letter * length)
        assert (await exchange.call.read()).WhichOneof("response") == "request_headers"
        whole = b'{"model": "tiny", "prompt": "%s"}' % (letter * length).encode()
        assert await gathered(exchange.call, "request_body", len(whole)) == whole
        await exchange.response_headers()
        reply = letter.encode() * length
        body = pb.HttpBody(body=reply, end_of_stream=True)
        await exchange.call.write(pb.ProcessingRequest(response_body=body))
        assert await gathered(exchange.call, "response_body", len(reply)) == reply
        await exchange.close()

    await asyncio.gather(*(converse("abcdefgh"[n]) for n in range(count)))
    await client.picker.settled()
    client.picker.assert_untouched()


async def gathered(call: Any, kind: str, length: int) -> bytes:
    """Read the pieces of a body until it is whole; the last must say so, and no other."""
    replies: list[pb.ProcessingResponse] = []
    found = 0
    while found < length:
        replies.append(await call.read())
        found += len(getattr(replies[-1], kind).response.body_mutation.streamed_response.body)
    body, ends = echoed(replies, kind)
    assert ends == [False] * (len(replies) - 1) + [True]
    return body


@after_each_phase
async def test_clients_may_leave_in_any_phase(client: Client, steps: tuple[Step, ...]) -> None:
    exchanges = await taken(client, 60, steps)
    staying = await take(client.call(), PHASES[:4])
    for exchange in exchanges:
        exchange.call.cancel()
    await until(lambda: client.picker.open_streams() == client.picker.in_flight() == 1)
    await take(staying, (*PHASES[4:], Exchange.close))
    await client.picker.settled()
    client.picker.assert_untouched()


async def test_deadlines_may_pass_in_any_phase(client: Client) -> None:
    async def outlast(steps: tuple[Step, ...]) -> grpc.StatusCode | None:
        exchange = client.call(timeout_seconds=0.5)
        try:
            await take(exchange, steps)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            # On a slow machine it passes within the steps. If it does so within a write, grpc.aio
            # makes up a status of its own, and nobody can tell which one came from the core.
            if await exchange.call.details() == "Internal error from Core":
                return None
        code: grpc.StatusCode = await exchange.call.code()
        return code

    staying = await take(client.call(), PHASES[:4])
    codes = await asyncio.gather(
        *(outlast(PHASES[:n]) for n in range(len(PHASES) + 1) for _ in range(25))
    )
    assert set(codes) - {None} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    await until(lambda: client.picker.open_streams() == client.picker.in_flight() == 1)
    await take(staying, (*PHASES[4:], Exchange.close))
    await client.picker.settled()
    client.picker.assert_untouched()


async def test_messages_under_way_at_the_end_of_their_stream_are_ignored(client: Client) -> None:
    # The second is out of order and ends the stream, while the client sends all it has.
    messages = [request_headers().SerializeToString()] * 100

    def talk_on() -> list[tuple[list[str | None], grpc.StatusCode]]:
        # Not by grpc.aio: its client takes a message that nobody wants for a fault of its own.
        with grpc.insecure_channel(f"127.0.0.1:{client.picker.ports.grpc}") as channel:
            method = channel.stream_stream(
                METHOD, response_deserializer=pb.ProcessingResponse.FromString
            )
            calls = [method(iter(messages)) for _ in range(50)]
            return [
                ([reply.WhichOneof("response") for reply in call], call.code()) for call in calls
            ]

    ends = await asyncio.to_thread(talk_on)
    assert ends == [(["immediate_response"], grpc.StatusCode.OK)] * 50
    await client.picker.settled()
    client.picker.assert_untouched()
    await take(client.call(), (*PHASES, Exchange.close))
