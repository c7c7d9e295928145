"""Messages in DATA frames, valid and invalid; errors end the call, not the connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from epp.transport import GrpcLimits, TransportSettings
from epp.transport.http2 import ConnectionLimits
from tools.harness.raw_client import (
    Echo,
    RawClient,
    Response,
    call,
    connected,
    data,
    fields,
    headers,
    message,
    reset,
    serving,
)

MIB = 1 << 20
LIMIT_BYTES = 4096
SMALL = TransportSettings(
    connection=ConnectionLimits(max_buffered_bytes=2 * LIMIT_BYTES),
    messages=GrpcLimits(max_message_bytes=LIMIT_BYTES),
)


@asynccontextmanager
async def talking(
    settings: TransportSettings | None = None,
) -> AsyncIterator[tuple[RawClient, list[Echo]]]:
    """Connect to an echo server; assert at the end that the connection still works."""
    async with serving(settings=settings) as served, connected(served.port) as client:
        yield client, served.handlers
        client.send(call(1001, b"still here"))
        response = await client.response(1001)
        assert (response.messages, response.status) == ([b"still here"], 0)
        assert client.goaways == []
        assert served.server.open_streams == 0


async def answered(
    *frames: bytes, settings: TransportSettings | None = None
) -> tuple[Response, list[Echo]]:
    """Return the response to ``frames`` on stream 1."""
    async with talking(settings) as (client, handlers):
        client.send(*frames)
        await client.response(1)
        await client.round_trip()
        return client.streams[1], handlers[:1]


def assert_failed(response: Response, code: int, *, was_ended: bool = True) -> None:
    """Assert that trailers ended the call, with RST NO_ERROR if the client had not ended it."""
    assert (response.status, response.is_ended) == (code, True)
    assert response.reset == (None if was_ended else 0)


async def test_message_may_arrive_byte_by_byte() -> None:
    bodies = [b"", b"a", b"hello" * 10]
    stream = b"".join(map(message, bodies))
    async with talking() as (client, _):
        client.send(headers(1))
        for n in range(len(stream)):
            client.send(data(1, stream[n : n + 1]))
            await client.round_trip()
        client.send(data(1, end=True))
        response = await client.response(1)
    assert (response.messages, response.status) == (bodies, 0)


@pytest.mark.parametrize("cut", range(1, 6))
async def test_message_may_be_split_inside_its_prefix(cut: int) -> None:
    whole = message(b"hello") + message(b"you")
    response, _ = await answered(headers(1), data(1, whole[:cut]), data(1, whole[cut:], end=True))
    assert (response.messages, response.status) == ([b"hello", b"you"], 0)


async def test_one_frame_may_contain_many_messages() -> None:
    bodies = [b"%d" % n for n in range(1000)]
    response, _ = await answered(call(1, *bodies))
    assert (response.messages, response.status) == (bodies, 0)


@pytest.mark.parametrize("size", [MIB, 3 * MIB])
async def test_large_messages_arrive_intact(size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    response, _ = await answered(call(1, body))
    assert response.status == 0
    assert response.messages == [body]


async def test_empty_message_is_a_message() -> None:
    response, handlers = await answered(call(1, b""))
    assert (response.messages, response.status) == ([b""], 0)
    assert handlers[0].messages == [b""]


@pytest.mark.parametrize(
    "frames",
    [(headers(1, end=True),), (headers(1), data(1, end=True))],
    ids=["END_STREAM on HEADERS", "half-close after the headers"],
)
async def test_call_without_messages_ends_with_the_handlers_status(
    frames: tuple[bytes, ...],
) -> None:
    response, handlers = await answered(*frames)
    assert_failed(response, 0)
    assert (handlers[0].half_closes, handlers[0].resets) == (1, 0)


@pytest.mark.parametrize("sent", [1, 4, 5, 7], ids=lambda n: f"{n} of 10 bytes")
async def test_incomplete_message_is_internal(sent: int) -> None:
    response, handlers = await answered(headers(1), data(1, message(b"hello")[:sent], end=True))
    assert_failed(response, 13)
    assert (handlers[0].messages, handlers[0].half_closes, handlers[0].resets) == ([], 0, 1)


async def test_messages_before_an_incomplete_one_are_answered() -> None:
    both = message(b"good") + message(b"bad")[:-1]
    response, _ = await answered(headers(1), data(1, both, end=True))
    assert response.messages == [b"good"]
    assert_failed(response, 13)


async def test_compressed_message_without_an_encoding_is_internal() -> None:
    response, handlers = await answered(headers(1), data(1, message(b"hello", flag=1), end=True))
    assert_failed(response, 13)
    assert handlers[0].resets == 1


@pytest.mark.parametrize("name", ["gzip", "deflate", "snappy", "gzip, deflate"])
async def test_compression_is_unimplemented_and_supported_encodings_are_named(name: str) -> None:
    asked = headers(1, fields(grpc_encoding=name))
    response, handlers = await answered(asked, data(1, message(b"hello"), end=True))
    assert response.status == 12
    assert response.headers["grpc-accept-encoding"] == "identity"
    assert name in response.headers["grpc-message"]
    assert handlers == []


async def test_encoding_identity_is_no_compression() -> None:
    asked = headers(1, fields(grpc_encoding="identity"))
    response, _ = await answered(asked, data(1, message(b"hello"), end=True))
    assert (response.messages, response.status) == ([b"hello"], 0)


@pytest.mark.parametrize("flag", [2, 3, 128, 255])
async def test_unknown_flag_is_internal(flag: int) -> None:
    response, _ = await answered(headers(1), data(1, message(b"hello", flag), end=True))
    assert_failed(response, 13)


@pytest.mark.parametrize("length", [LIMIT_BYTES + 1, (1 << 32) - 1])
async def test_message_above_the_limit_is_refused_at_its_prefix(length: int) -> None:
    prefix = message(b"", length=length)
    response, handlers = await answered(headers(1), data(1, prefix), settings=SMALL)
    assert_failed(response, 8, was_ended=False)
    assert (handlers[0].messages, handlers[0].resets) == ([], 1)


async def test_message_of_exactly_the_limit_is_accepted() -> None:
    body = b"x" * LIMIT_BYTES
    response, _ = await answered(call(1, body), settings=SMALL)
    assert (response.messages, response.status) == ([body], 0)


async def test_data_after_a_refused_message_is_discarded() -> None:
    async with talking(SMALL) as (client, handlers):
        client.send(headers(1), data(1, message(b"", length=1 << 30)))
        response = await client.response(1)
        client.send(data(1, b"x" * LIMIT_BYTES), data(1, message(b"late"), end=True))
        await client.round_trip()
        assert_failed(response, 8, was_ended=False)
        assert handlers[0].messages == []


async def test_incomplete_messages_of_a_connection_have_one_budget() -> None:
    half = message(b"x" * 3000, length=LIMIT_BYTES)
    async with talking(SMALL) as (client, _):
        client.send(*(headers(n) + data(n, half) for n in (1, 3)))
        client.send(headers(5), data(5, half))
        assert (await client.response(5)).status == 8
        # The other two are completed, which makes room.
        client.send(*(data(n, b"x" * (LIMIT_BYTES - 3000), end=True) for n in (1, 3)))
        for stream_id in (1, 3):
            response = await client.response(stream_id)
            assert (response.status, response.messages) == (0, [b"x" * LIMIT_BYTES])
        client.send(headers(7), data(7, half))
        await client.round_trip()
        client.send(data(7, b"x" * (LIMIT_BYTES - 3000), end=True))
        assert (await client.response(7)).status == 0


async def test_incomplete_messages_of_all_connections_have_one_budget() -> None:
    half = message(b"x" * 3000, length=LIMIT_BYTES)
    settings = replace(SMALL, max_total_buffered_bytes=2 * LIMIT_BYTES)
    async with serving(Echo, settings=settings) as served, connected(served.port) as other:
        async with connected(served.port) as client:
            client.send(*(headers(n) + data(n, half) for n in (1, 3)))
            await client.round_trip()
            assert served.server.statistics().buffered_bytes == 6000
            other.send(headers(1), data(1, half))
            assert (await other.response(1)).status == 8
            client.send(*(data(n, b"x" * (LIMIT_BYTES - 3000), end=True) for n in (1, 3)))
            assert [(await client.response(n)).status for n in (1, 3)] == [0, 0]
            client.send(*(headers(n) + data(n, half) for n in (5, 7)))
            await client.round_trip()
        while len(served.server.connections) > 1:
            await other.round_trip()
        assert served.server.statistics().buffered_bytes == 0, (
            "the closed connection must give its bytes back"
        )
        other.send(headers(3), data(3, half))
        await other.round_trip()
        other.send(data(3, b"x" * (LIMIT_BYTES - 3000), end=True))
        assert (await other.response(3)).status == 0
        assert served.server.statistics().buffered_bytes == 0


async def test_trailers_of_the_client_end_its_request() -> None:
    trailers = headers(1, [("x-checksum", "1")], end=True)
    response, handlers = await answered(headers(1), data(1, message(b"hello")), trailers)
    assert (response.messages, response.status) == ([b"hello"], 0)
    assert handlers[0].half_closes == 1


async def test_reset_gives_back_the_budget_of_an_incomplete_message() -> None:
    half = message(b"x" * 4000, length=LIMIT_BYTES)
    async with talking(SMALL) as (client, handlers):
        for stream_id in range(1, 41, 4):
            client.send(headers(stream_id), data(stream_id, half), reset(stream_id))
            client.send(headers(stream_id + 2), data(stream_id + 2, half, end=True))
            assert (await client.response(stream_id + 2)).status == 13
        assert [handler.resets for handler in handlers] == [1] * 20


class EndingAtOnce(Echo):
    """Ends with its first message."""

    def message(self, data: bytes) -> None:
        super().message(data)
        self.stream.finish()


async def test_handler_is_not_called_after_it_has_ended_the_stream() -> None:
    async with serving(EndingAtOnce) as served, connected(served.port) as client:
        client.send(call(1, b"a", b"b", b"c"))
        assert (await client.response(1)).messages == [b"a"]
        client.send(headers(3), data(3, message(b"a")), data(3, message(b"b")), reset(3))
        await client.round_trip()
        for handler in served.handlers:
            assert (handler.messages, handler.half_closes, handler.resets) == ([b"a"], 0, 0)
