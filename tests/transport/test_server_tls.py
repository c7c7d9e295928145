"""The server behind TLS, in real handshakes over real sockets."""

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import uvloop
from grpc import aio

from epp.transport import (
    Certificate,
    Http2Server,
    Stream,
    Timeouts,
    TlsSettings,
    TransportSettings,
    load_certificate,
    make_context,
)
from tools.harness.raw_client import (
    GREETING,
    METHOD,
    Echo,
    RawClient,
    call,
    connected,
)
from transport.contract import all_of, is_grpc_poller_error

MIB = 1 << 20

Test = Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return load_certificate(None)


@pytest.fixture
def context(certificate: Certificate) -> ssl.SSLContext:
    return make_context(TlsSettings(), certificate)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Runs a coroutine on one of the event loops; only errors of grpc.aio's poller are ignored."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(test: Test) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            faults: list[dict[str, Any]] = []
            runner.get_loop().set_exception_handler(lambda _, fault: faults.append(fault))
            runner.run(test())  # type: ignore[arg-type] # every test here is a coroutine
            assert [fault for fault in faults if not is_grpc_poller_error(fault)] == []

    return run


def client_context(certificate: Certificate, *protocols: str) -> ssl.SSLContext:
    """A client that trusts the server and offers these protocols."""
    made = ssl.create_default_context(cadata=certificate.chain.decode())
    if protocols:
        made.set_alpn_protocols(list(protocols))
    return made


@asynccontextmanager
async def serving(
    context: ssl.SSLContext, **timeouts: float
) -> AsyncIterator[tuple[Http2Server, int, list[Echo]]]:
    handlers: list[Echo] = []

    def opened(stream: Stream, metadata: Mapping[str, str]) -> Echo:
        handlers.append(Echo(stream, metadata))
        return handlers[-1]

    given = TransportSettings(timeouts=Timeouts(**timeouts))
    server = Http2Server({METHOD: opened}, host="127.0.0.1", tls=context, settings=given)
    port = await server.start()
    try:
        yield server, port, handlers
    finally:
        await server.stop(0)


@pytest.mark.parametrize("size", [1, 12 * MIB], ids=["1 byte", "12 MB"])
def test_grpc_client_that_verifies_is_served(
    run: Callable[[Test], None], context: ssl.SSLContext, certificate: Certificate, size: int
) -> None:
    async def test() -> None:
        async with serving(context) as (_, port, handlers):
            trusted = grpc.ssl_channel_credentials(certificate.chain)
            limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            async with aio.secure_channel(f"localhost:{port}", trusted, limits) as channel:
                calls = [channel.stream_stream(METHOD)() for _ in range(3)]
                for each in calls:
                    await each.write(b"x" * size)
                    await each.done_writing()
                for each in calls:
                    assert await all_of(each) == ([b"x" * size], grpc.StatusCode.OK)
            assert [handler.resets for handler in handlers] == [0, 0, 0]

    run(test)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_of_frames_is_served(
    run: Callable[[Test], None],
    context: ssl.SSLContext,
    certificate: Certificate,
    version: ssl.TLSVersion,
) -> None:
    async def test() -> None:
        async with serving(context) as (server, port, _):
            given = client_context(certificate, "http/1.1", "h2")
            given.minimum_version = given.maximum_version = version
            async with connected(port, tls=given) as client:
                client.send(call(1, b"hello"))
                response = await client.response(1)
                assert (response.messages, response.status) == ([b"hello"], 0)
                assert server.counters.connections_refused == 0

    run(test)


@pytest.mark.parametrize(
    "protocols", [(), ("http/1.1",), ("h2c", "grpc-exp")], ids=["none", "http/1.1", "others"]
)
def test_client_without_alpn_h2_is_closed(
    run: Callable[[Test], None],
    context: ssl.SSLContext,
    certificate: Certificate,
    protocols: tuple[str, ...],
) -> None:
    async def test() -> None:
        async with serving(context) as (server, port, handlers):
            # In TLS 1.3 the handshake ends for the client before the server checks it.
            try:
                async with connected(port, tls=client_context(certificate, *protocols)) as client:
                    await client.at_end()
                    assert client.frames == []
            except (ConnectionError, ssl.SSLError):
                pass  # the handshake failed, or what the client sent met a closed socket
            assert handlers == []
            assert server.counters.connections_refused == server.counters.connections_opened
            await assert_served(port, certificate)

    run(test)


async def assert_served(port: int, certificate: Certificate) -> None:
    """Assert that a valid client is served."""
    async with connected(port, tls=client_context(certificate, "h2")) as client:
        client.send(call(1, b"hello"))
        assert (await client.response(1)).messages == [b"hello"]


def test_replaced_context_is_used_for_new_connections(
    run: Callable[[Test], None], context: ssl.SSLContext, certificate: Certificate
) -> None:
    async def test() -> None:
        following = await asyncio.to_thread(load_certificate, None)
        async with (
            serving(context) as (server, port, _),
            connected(port, tls=client_context(certificate, "h2")) as client,
        ):
            client.send(call(1, b"before"))
            assert (await client.response(1)).messages == [b"before"]
            renewed = await asyncio.to_thread(make_context, TlsSettings(), following)
            await asyncio.to_thread(server.use_context, renewed)
            await assert_served(port, following)
            with pytest.raises(ssl.SSLCertVerificationError):
                await assert_served(port, certificate)
            client.send(call(3, b"after"))
            assert (await client.response(3)).messages == [b"after"]
            # That client may have closed before the server reads its alert.
            assert server.statistics().refused["handshake"] <= 1

    run(test)


def test_plaintext_has_no_context_to_replace(context: ssl.SSLContext) -> None:
    with pytest.raises(ValueError, match="plaintext"):
        Http2Server({}).use_context(context)


@pytest.mark.parametrize("sent", [GREETING, b"GET / HTTP/1.1\r\n\r\n", bytes(100)])
def test_plaintext_on_the_tls_port_is_closed(
    run: Callable[[Test], None], context: ssl.SSLContext, certificate: Certificate, sent: bytes
) -> None:
    async def test() -> None:
        async with serving(context) as (server, port, handlers):
            async with connected(port, b"") as client:
                client.send(sent)
                # Bytes before the end are a TLS alert, not a frame.
                with pytest.raises(EOFError):
                    await client.reader.readexactly(1 << 20)
            assert handlers == []
            assert server.connections == set()
            await assert_served(port, certificate)

    run(test)


def test_unfinished_handshake_times_out(
    run: Callable[[Test], None], context: ssl.SSLContext, certificate: Certificate
) -> None:
    async def test() -> None:
        async with serving(context, preface_seconds=0.1) as (_, port, _handlers):
            async with connected(port, b"") as client:
                client.send(b"\x16\x03\x01")
                await client.at_end()
            await assert_served(port, certificate)

    run(test)


def test_handshake_during_stop_is_not_served(
    run: Callable[[Test], None], context: ssl.SSLContext, certificate: Certificate
) -> None:
    async def test() -> None:
        async with serving(context) as (server, port, handlers):
            raw = socket.create_connection(("127.0.0.1", port))
            raw.setblocking(False)
            await assert_served(port, certificate)  # the server has taken the first one, too
            await server.stop(0)
            try:
                reader, writer = await asyncio.open_connection(
                    sock=raw, ssl=client_context(certificate, "h2"), server_hostname="localhost"
                )
                client = RawClient(reader=reader, writer=writer)
                client.send(GREETING, call(1, b"hello"))
                await client.at_end()
                assert client.streams == {}
                writer.close()
            except (ConnectionError, ssl.SSLError):
                pass
            assert len(handlers) == 1
            assert server.open_streams == 0

    run(test)


def test_stop_ends_streams_behind_tls(
    run: Callable[[Test], None], context: ssl.SSLContext, certificate: Certificate
) -> None:
    async def test() -> None:
        async with (
            serving(context) as (server, port, handlers),
            connected(port, tls=client_context(certificate, "h2")) as client,
        ):
            client.send(call(1, b"hello", end=False))
            await client.round_trip()
            await server.stop(0)
            await client.at_end()
            assert [last for last, _ in client.goaways] == [(1 << 31) - 1, 1]
            assert [handler.resets for handler in handlers] == [1]

    run(test)


def test_many_clients_may_connect_at_once(
    run: Callable[[Test], None], context: ssl.SSLContext, certificate: Certificate
) -> None:
    async def test() -> None:
        async with serving(context) as (server, port, _):
            await asyncio.gather(
                *itertools.starmap(assert_served, itertools.repeat((port, certificate), 20))
            )
            assert server.counters.connections_opened == 20

    run(test)
