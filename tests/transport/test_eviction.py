"""Eviction on a full port, over real sockets."""

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import uvloop
from structlog.testing import capture_logs

from epp.sockets import ACCEPTS_PER_TURN
from epp.transport import (
    Http2Server,
    TlsSettings,
    TransportSettings,
    load_certificate,
    make_context,
)
from epp.transport.eviction import DRAIN_SECONDS, connections_for, descriptors_for
from epp.transport.protocol import ConnectionProtocol
from tools.harness.raw_client import (
    GREETING,
    METHOD,
    Echo,
    Idle,
    RawClient,
    Serving,
    call,
    connected,
    headers,
    ping,
    serving,
)
from transport.served import assert_serves

MAX_STREAM_ID = (1 << 31) - 1

Run = Callable[[Callable[[], Coroutine[None, None, None]]], None]


def limited(max_connections: int) -> TransportSettings:
    return TransportSettings().with_values({"max_connections": max_connections})


async def established(stack: AsyncExitStack, port: int, count: int) -> list[RawClient]:
    """Open connections one after the other; each has sent its preface."""
    clients = []
    for _ in range(count):
        client = await stack.enter_async_context(connected(port))
        await client.round_trip()
        clients.append(client)
    return clients


def protocols(served: Serving) -> list[ConnectionProtocol]:
    return sorted(served.server.connections, key=lambda each: each.accepted_at)


def hour_ago(protocol: ConnectionProtocol) -> None:
    protocol.accepted_at -= 3600


@asynccontextmanager
async def full(
    limit: int, handler: type[Echo] = Idle
) -> AsyncIterator[tuple[Serving, list[RawClient]]]:
    """Serve a port that is full of connections without streams."""
    async with serving(handler, settings=limited(limit)) as served, AsyncExitStack() as stack:
        yield served, await established(stack, served.port, limit)


async def test_new_connection_is_served_and_the_idlest_one_is_drained() -> None:
    async with full(3, Echo) as (served, clients):
        clients[0].send(call(1, b"not idle"))
        assert (await clients[0].response(1)).status == 0
        protocols(served)[1].tick()
        protocols(served)[2].tick()
        protocols(served)[2].tick()  # a second longer without a stream
        await assert_serves(served.port)
        await clients[2].until(lambda: clients[2].goaways)
        assert clients[2].goaways[0] == (MAX_STREAM_ID, 0)
        await clients[0].round_trip()
        await clients[1].round_trip()
        assert clients[0].goaways == clients[1].goaways == []
        figures = served.server.port_statistics()
        assert (figures.evicted, figures.refused) == (1, 0)
        assert served.server.statistics().ended["evicted"] == 1


async def test_drained_connection_may_close_cleanly() -> None:
    async with full(1) as (served, (client,)), connected(served.port):
        await client.until(lambda: client.goaways)
        client.send(ping(client.pings[-1].opaque_data, ack=True))
        await client.at_end()
        assert [code for _, code in client.goaways] == [0] * len(client.goaways)


async def test_stream_in_flight_is_served_on_a_draining_connection() -> None:
    async with full(1, Echo) as (served, (client,)), connected(served.port) as new:
        await new.round_trip()
        client.send(call(1, b"on its way"))
        assert (await client.response(1)).messages == [b"on its way"]


async def test_client_that_ignores_the_drain_is_closed() -> None:
    async with full(1) as (served, (client,)), connected(served.port) as new:
        await new.round_trip()
        (draining,) = served.server._evictor._draining
        served.server._evictor.tick()
        await new.round_trip()
        assert draining in served.server.connections
        served.server._evictor._draining[draining] -= DRAIN_SECONDS
        served.server._evictor.tick()
        await client.at_end()
        assert draining not in served.server.connections


async def test_clients_that_ignore_the_drain_take_no_room_of_others() -> None:
    async with full(16) as (served, clients), AsyncExitStack() as stack:
        # 16 news: one connection may be leaving at a time, and the one before it is cut off.
        await established(stack, served.port, 16)
        assert len(served.server.connections) <= 17
        for client in clients[:-1]:
            await client.at_end()
        assert served.server.port_statistics().evicted == 16


async def test_connections_with_streams_stay_and_the_new_one_is_refused() -> None:
    async with full(2) as (served, clients):
        for client in clients:
            client.send(headers(1))
            await client.round_trip()
        async with connected(served.port) as new:
            await new.at_end()
            assert new.frames == []
        for client in clients:
            await client.round_trip()
            assert client.goaways == []
        figures = served.server.port_statistics()
        assert (figures.evicted, figures.refused) == (0, 1)
        assert served.server.statistics().refused["connection"] == 1
    assert await served.server._is_empty_within(5)


async def test_unfinished_connection_is_evicted_before_an_unused_one() -> None:
    async with serving(settings=limited(3)) as served, AsyncExitStack() as stack:
        clients = await established(stack, served.port, 2)
        async with connected(served.port, b"") as silent:
            await silent.until(lambda: silent.frames)
            hour_ago(protocols(served)[2])
            await assert_serves(served.port)
            await silent.at_end()
            assert silent.goaways == []
        for client in clients:
            await client.round_trip()
            assert client.goaways == []


async def test_connection_in_its_handshake_is_spared_for_a_moment() -> None:
    async with full(5) as (served, clients):
        async with connected(served.port, b"") as slow, AsyncExitStack() as stack:
            await slow.until(lambda: slow.frames)
            # Each new connection would have evicted the unfinished one before it.
            await established(stack, served.port, 4)
            slow.send(GREETING)
            await slow.round_trip()
        assert served.server.port_statistics().evicted == 5
        for client in clients:
            await client.at_end()


async def test_unfinished_connections_do_not_evict_unused_ones() -> None:
    async with full(8) as (served, clients), AsyncExitStack() as stack:
        silent = []
        for _ in range(20):
            silent.append(await stack.enter_async_context(connected(served.port, b"")))
            await silent[-1].until(lambda: silent[-1].frames)
        # They get at most a quarter of the port, plus one.
        unfinished = [
            each for each in served.server.connections if each in served.server._evictor._unfinished
        ]
        assert len(unfinished) <= 3
        for client in clients[3:]:
            await client.round_trip()
            assert client.goaways == []
        for each in silent[:15]:
            await each.at_end()


@pytest.mark.parametrize("evicts", [True, False])
async def test_port_of_probes_always_admits_a_new_connection(evicts: bool) -> None:
    server = Http2Server(
        {METHOD: Idle}, host="127.0.0.1", settings=limited(2), evicts_streams=evicts
    )
    port = await server.start()
    try:
        async with AsyncExitStack() as stack:
            watching = await established(stack, port, 2)
            for client in watching:
                client.send(headers(1))
                await client.round_trip()
            async with connected(port) as probe:
                if not evicts:
                    await probe.at_end()
                    return
                await probe.round_trip()
                await watching[0].at_end()
                await watching[1].round_trip()
    finally:
        await server.stop(0)


def test_connections_and_descriptors_convert_into_each_other() -> None:
    for number in range(1, 3000):
        assert connections_for(descriptors_for(number)) == number
        assert descriptors_for(connections_for(number)) <= max(2, number)


# --- on both event loops --------------------------------------------------------------------------


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test())

    return run


class Mob:
    """Clients that act at random."""

    def __init__(self, server: Http2Server, port: int, rng: random.Random) -> None:
        self._server = server
        self._address = ("127.0.0.1", port)
        self._rng = rng
        self._clients: list[socket.socket] = []

    def step(self) -> None:
        chance = self._rng.random()
        if chance < 0.5 or not self._clients:
            client = socket.socket()
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(self._address)
            self._clients.append(client)
        elif chance < 0.85:
            client = self._rng.choice(self._clients)
            with suppress(OSError):
                client.send(self._rng.choice((GREETING, GREETING, headers(1), call(3, b"x"))))
        elif chance < 0.95:
            self._clients.pop(self._rng.randrange(len(self._clients))).close()
        elif chance < 0.99:
            assert self._server._timer is not None
            self._server._timer.cancel()
            self._server._tick()
        else:
            self._server._evictor.free_descriptors()

    def leave(self) -> None:
        for client in self._clients:
            client.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_limit_holds_and_nothing_leaks_under_random_clients(run: Run, seed: int) -> None:
    limit = 48

    async def test() -> None:
        rng = random.Random(seed)
        server = Http2Server({METHOD: Idle}, host="127.0.0.1", settings=limited(limit))
        mob = Mob(server, await server.start(), rng)
        for _ in range(1500):
            mob.step()
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            # Aborted connections are closed two iterations later.
            most = descriptors_for(limit) + 2 * ACCEPTS_PER_TURN
            assert server.port_statistics().connections <= most
        mob.leave()
        assert await server._is_empty_within(10)
        await server._acceptor.settled()
        evictor = server._evictor
        assert evictor.evicted > 0
        kept = (evictor._aborted, evictor._draining, evictor._unfinished, server._acceptor.pending)
        assert [len(each) for each in kept] == [0, 0, 0, 0]
        await server.stop(0)

    with capture_logs():
        run(test)


def test_unfinished_handshakes_do_not_block_other_clients(run: Run) -> None:
    certificate = load_certificate(None)
    trusted = ssl.create_default_context(cadata=certificate.chain.decode())
    trusted.set_alpn_protocols(["h2"])

    async def test() -> None:
        server = Http2Server(
            {METHOD: Echo},
            host="127.0.0.1",
            tls=make_context(TlsSettings(), certificate),
            settings=limited(4),
        )
        port = await server.start()
        async with AsyncExitStack() as stack:
            stuck = []
            for _ in range(20):
                stuck.append(await stack.enter_async_context(connected(port, b"")))
                stuck[-1].send(b"\x16\x03\x01")
            async with connected(port, tls=trusted) as client:
                client.send(call(1, b"hello"))
                assert (await client.response(1)).messages == [b"hello"]
                figures = server.port_statistics()
                assert figures.connections <= 4
                assert (figures.evicted, figures.refused) == (17, 0)
            for each in stuck[:17]:
                await each.at_end()
            await server.stop(0)

    run(test)
