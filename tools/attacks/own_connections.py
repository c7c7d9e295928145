"""Our own attacks through the way requests are sent or withheld."""

import asyncio
import json
from random import Random
from typing import ClassVar

from tools.attacks.attack import Attack, Needs, Setup, Tally, Target, paced
from tools.attacks.listed_clients import SMALL
from tools.attacks.sending import CHAT, COMPLETIONS, HOST, post
from tools.faults.aborts import HESITATION_SECONDS, POINTS, Point
from tools.faults.asking import BROKEN, Request, connected, make_request
from tools.faults.http2_client import connected as http2_connected

ALL_SETUPS = Needs(setups=tuple(Setup))


class CancelledUploads(Attack):
    """Clients that disconnect at every point of a request and its response, by FIN or RST."""

    name = "cancelled-uploads"
    needs = ALL_SETUPS
    rate: ClassVar[float] = 40.0

    async def run(self, target: Target, tally: Tally) -> None:
        chooser = Random(1)
        async with asyncio.TaskGroup() as tasks:
            async for number in paced(self.rate):
                tasks.create_task(self._one(target.gateway, number, chooser, tally))

    async def _one(self, port: int, number: int, chooser: Random, tally: Tally) -> None:
        point = POINTS[number % len(POINTS)]
        request = make_request(number, chooser, events=8)
        part = {
            Point.IN_THE_HEAD: request.head[: chooser.randrange(len(request.head))],
            Point.BEFORE_THE_BODY: request.head,
            Point.MID_BODY: request.head + request.body[: chooser.randrange(len(request.body))],
        }.get(point, request.head + request.body)
        try:
            async with connected(port) as connection:
                await connection.send(part)
                if point is Point.BEFORE_THE_RESPONSE:
                    await asyncio.sleep(chooser.uniform(0.0, HESITATION_SECONDS))
                elif point is Point.MID_RESPONSE:
                    await connection.response()
                await connection.leave(with_reset=chooser.random() < 0.5)
            tally[f"left {point}"] += 1
        except (*BROKEN, TimeoutError):
            tally["broken off"] += 1


class Pipelines(Attack):
    """A hundred pipelined HTTP/1.1 requests in one write, and the connection dropped halfway."""

    name = "pipelines"
    rate: ClassVar[float] = 0.5
    requests: ClassVar[int] = 100

    async def run(self, target: Target, tally: Tally) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for number in paced(self.rate):
                tasks.create_task(self._one(target.gateway, tally, leaves=bool(number % 2)))

    async def _one(self, port: int, tally: Tally, *, leaves: bool) -> None:
        expected = self.requests // 2 if leaves else self.requests
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(post(SMALL, COMPLETIONS) * self.requests)
            seen = b""
            async with asyncio.timeout(30):
                while seen.count(b"HTTP/1.1 ") < expected and (more := await reader.read(1 << 16)):
                    seen += more
            tally["responses"] += seen.count(b"HTTP/1.1 ")
            writer.transport.abort()
        except (OSError, TimeoutError):
            tally["broken off"] += 1


class RapidResets(Attack):
    """HTTP/2 streams that are opened and reset at once, before, within and after their bodies."""

    name = "rapid-resets"
    needs = ALL_SETUPS
    streams: ClassVar[int] = 20
    rate: ClassVar[float] = 3.0
    """Connections a second."""

    async def run(self, target: Target, tally: Tally) -> None:
        chooser = Random(2)
        async with asyncio.TaskGroup() as tasks:
            async for number in paced(self.rate):
                tasks.create_task(self._one(target.gateway, number, chooser, tally))

    async def _one(self, port: int, number: int, chooser: Random, tally: Tally) -> None:
        try:
            async with http2_connected(port) as client:
                for index in range(self.streams):
                    request = make_request(number * self.streams + index, chooser)
                    stream = client.begin(request)
                    if index % 3:
                        part = request.body[: len(request.body) // (index % 3)]
                        await client.send(stream, part, end=index % 3 == 1)
                    client.reset(stream)
                    tally["reset"] += 1
        except (OSError, TimeoutError):
            tally["broken off"] += 1


class EndsTogether(Attack):
    """500 bodies of 12 KB with pictures whose last bytes are sent at once, on ten connections.

    The loop decided a thousand of them in one turn, which took 2.1 s.
    """

    name = "ends-together"
    needs = ALL_SETUPS
    connections: ClassVar[int] = 10
    streams: ClassVar[int] = 50
    seconds_between: ClassVar[float] = 10.0

    def prepare(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": "a"}}
        messages = [{"role": "user", "content": [picture] * 220}]
        body = json.dumps({"model": "tiny", "max_tokens": 1, "messages": messages}).encode()
        self._request = Request("ends-together", body, headers={":path": CHAT})

    async def run(self, target: Target, tally: Tally) -> None:
        async for _ in paced(1 / self.seconds_between):
            almost_whole = asyncio.Barrier(self.connections)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.connections):
                    tasks.create_task(self._one(target.gateway, tally, almost_whole))

    async def _one(self, port: int, tally: Tally, almost_whole: asyncio.Barrier) -> None:
        body = self._request.body
        try:
            async with http2_connected(port) as client:
                streams = [client.begin(self._request) for _ in range(self.streams)]
                for stream in streams:
                    await client.send(stream, body[:-1], end=False)
                await almost_whole.wait()
                tally["sent"] += self.streams
                for stream in streams:
                    await client.send(stream, body[-1:], end=True)
                for stream in streams:
                    await stream.ended
                    tally[str(stream.status)] += 1
        except (OSError, TimeoutError, asyncio.BrokenBarrierError):
            await almost_whole.abort()
            tally["broken off"] += 1


class LongHeads(Attack):
    """800 requests with 48 KB of headers, each followed by a body that does not end.

    4000 of them took 256 MB that did not count towards any limit.
    """

    name = "long-heads"
    connections: ClassVar[int] = 800
    rate: ClassVar[float] = 100.0
    """Requests a second, until all are open."""

    def prepare(self) -> None:
        headers = {f"x-long-{number}": "v" * 530 for number in range(90)}
        self._request = post(SMALL, COMPLETIONS, headers)[:-1]

    async def run(self, target: Target, tally: Tally) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for number in paced(self.rate):
                tasks.create_task(self._one(target.gateway, tally))
                if number + 1 == self.connections:
                    break

    async def _one(self, port: int, tally: Tally) -> None:
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
            tally["sent"] += 1
            try:
                writer.write(self._request)
                tally[(await reader.readline())[9:12].decode() or "broken off"] += 1
            finally:
                writer.transport.abort()
        except OSError:
            tally["broken off"] += 1


class SlowHeads(Attack):
    """300 connections that send a header a second, and never the end of the head."""

    name = "slow-heads"
    connections: ClassVar[int] = 300

    async def run(self, target: Target, tally: Tally) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.connections):
                tasks.create_task(self._one(target.gateway, tally, number / self.connections))

    async def _one(self, port: int, tally: Tally, after: float) -> None:
        await asyncio.sleep(5 * after)
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, port)
                writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\n")
                while not writer.is_closing():
                    writer.write(b"x-slow: 1\r\n")
                    await writer.drain()
                    await asyncio.sleep(2)
            except OSError:
                tally["broken off"] += 1
            await asyncio.sleep(1)
