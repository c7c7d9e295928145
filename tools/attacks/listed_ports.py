"""Known faults 5, 9, 11 and 12: exhausted file descriptors and hostile model servers."""

import asyncio
from collections.abc import Iterator
from typing import ClassVar

from tools.attacks.attack import Attack, Needs, Posts, Server, Tally, Target
from tools.attacks.listed_clients import SMALL, fresh_completion
from tools.attacks.sending import COMPLETIONS, HOST, post

OPENING_AT_ONCE = 300


class UnreadLog(Attack):
    """The log is a pipe that nobody reads.

    Once it was full, every request hung, and SIGTERM had no effect.
    """

    name = "unread-log"
    item = 5
    needs = Needs(unread_log=True)

    async def run(self, target: Target, tally: Tally) -> None:
        tally["left unread"] += 1
        await asyncio.Event().wait()


class IdleConnections(Attack):
    """Idle connections to each port: 3 000 to the metrics port made 2 781 threads.

    On the health port they blocked the probes. Ended connections are reopened.
    """

    name = "idle-connections"
    item = 9
    metrics: ClassVar[int] = 3_000
    health: ClassVar[int] = 400
    ext_proc: ClassVar[int] = 400
    a_second: ClassVar[int] = 600

    async def run(self, target: Target, tally: Tally) -> None:
        opening = asyncio.Semaphore(OPENING_AT_ONCE)
        wanted = (
            (target.metrics, "metrics", self.metrics),
            (target.health, "health", self.health),
            (target.ext_proc, "ext_proc", self.ext_proc),
        )
        async with asyncio.TaskGroup() as tasks:
            for port, what, count in wanted:
                for number in range(count):
                    after = number / self.a_second
                    tasks.create_task(self._hold(port, what, after, opening, tally))

    async def _hold(
        self, port: int, what: str, after: float, opening: asyncio.Semaphore, tally: Tally
    ) -> None:
        await asyncio.sleep(after)
        while True:
            try:
                async with opening, asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection(HOST, port)
            except (OSError, TimeoutError):
                tally[f"{what}: no connection"] += 1
            else:
                tally[f"{what}: opened"] += 1
                try:
                    await reader.read()
                    tally[f"{what}: ended by the server"] += 1
                except OSError:
                    tally[f"{what}: ended by the server"] += 1
                finally:
                    writer.transport.abort()
            await asyncio.sleep(5)


class FewDescriptors(IdleConnections):
    """With 1 024 descriptors 1 200 idle connections stopped the gateway, at 94 % CPU."""

    name = "few-descriptors"
    needs = Needs(open_files=1024)
    metrics = 1_200
    health = 100
    ext_proc = 200


class FailingServer(Attack):
    """A server that answers 500 at once drew 82 % of the requests. Reported without a target."""

    name = "failing-server"
    item = 11
    needs = Needs(servers=(Server.FAILING,))

    async def run(self, target: Target, tally: Tally) -> None:
        await asyncio.Event().wait()


class SlowReaders(Attack):
    """150 clients request long responses and do not read them: 2.1 GB in Envoy in full duplex."""

    name = "slow-readers"
    item = 11
    needs = Needs(servers=(Server.TALKATIVE,))
    readers: ClassVar[int] = 150

    async def run(self, target: Target, tally: Tally) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.readers):
                tasks.create_task(self._stall(target, tally, number / self.readers))

    async def _stall(self, target: Target, tally: Tally, after: float) -> None:
        await asyncio.sleep(5 * after)
        headers = {"x-response": "long", "connection": "close"}
        while True:
            request = post(fresh_completion(), COMPLETIONS, headers)
            try:
                reader, writer = await asyncio.open_connection(HOST, target.gateway, limit=1 << 12)
                writer.write(request)
                response = await reader.read(1 << 12)
                if b"x-long: 1" in response:
                    tally["held"] += 1
                    await asyncio.sleep(60)
                writer.transport.abort()
            except OSError:
                tally["broken off"] += 1
            await asyncio.sleep(1)


class LargePage(Posts):
    """The metrics page of a server has 180 000 series: 71 % of a CPU core."""

    name = "large-page"
    item = 12
    needs = Needs(servers=(Server.LARGE_PAGE,))
    rate = 1.0

    def requests(self) -> Iterator[bytes]:
        yield post(SMALL, COMPLETIONS)
