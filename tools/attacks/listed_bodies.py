"""Known faults 1 to 4: malicious body contents and compression."""

import asyncio
from collections.abc import Iterator
from typing import ClassVar

from tools.attacks.attack import Attack, Posts, Tally, Target, paced
from tools.attacks.bodies import (
    LARGE_BYTES,
    compressed_post,
    dense_messages,
    long_name,
    long_prompt,
)
from tools.attacks.sending import COMPLETIONS, HOST, post

REWRITE = "x-llm-d-model-name-rewrite"


class DenseCompressed(Posts):
    """5.9 KB that decode to 64 MB of ``{"messages": [{}, 0, 0, …``.

    Each blocked the loop for 34 s, with an RSS of 2.65 GB and failed liveness checks; with four of
    them 8 s apart, 986 of 986 honest requests got 500.
    """

    name = "dense-compressed"
    item = 1
    rate = 1 / 8
    at_once = 10

    def requests(self) -> Iterator[bytes]:
        yield compressed_post(dense_messages(LARGE_BYTES))


class DensePlain(Attack):
    """20 bodies of 1 MiB, dense and uncompressed, that end together.

    They took 260 ms each in the same turn of the loop, which was blocked for 8.2 s.
    """

    name = "dense-plain"
    item = 1
    at_once: ClassVar[int] = 20
    seconds_between: ClassVar[float] = 8.0

    def prepare(self) -> None:
        self._request = post(dense_messages((1 << 20) - 100))

    async def run(self, target: Target, tally: Tally) -> None:
        async for _ in paced(1 / self.seconds_between):
            almost_whole = asyncio.Barrier(self.at_once)
            tally["sent"] += self.at_once
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.at_once):
                    tasks.create_task(self._one(target, tally, almost_whole))

    async def _one(self, target: Target, tally: Tally, almost_whole: asyncio.Barrier) -> None:
        try:
            reader, writer = await asyncio.open_connection(HOST, target.gateway)
        except OSError:
            tally["no connection"] += 1
            await almost_whole.wait()
            return
        try:
            writer.write(self._request[:-1])
            await writer.drain()
            await almost_whole.wait()
            writer.write(self._request[-1:])
            async with asyncio.timeout(60):
                line = await reader.readline()
            tally[line[9:12].decode() or "broken off"] += 1
        except (OSError, TimeoutError):
            tally["broken off"] += 1
        finally:
            writer.transport.abort()


class RewrittenLarge(Posts):
    """2.2 KB that decode to 64 MB, with a client's own model rewrite.

    200 of them took 7.5 GB, because decoded and rewritten bodies did not count as held bytes.
    """

    name = "rewritten-large"
    item = 2
    rate = 5.0
    burst = 50
    at_once = 200

    def requests(self) -> Iterator[bytes]:
        yield compressed_post(
            long_prompt(LARGE_BYTES), path=COMPLETIONS, headers={REWRITE: "another"}
        )


class Bombs(Posts):
    """2.1 KB of zstd or gzip that decode to 64 MB, five a second.

    Each took 118 ms of the loop (gzip 196 ms, with a rewrite 247 ms), which moved the honest median
    from 4 to 358 ms.
    """

    name = "bombs"
    item = 3
    rate = 5.0

    def requests(self) -> Iterator[bytes]:
        body = long_prompt(LARGE_BYTES)
        yield compressed_post(body, path=COMPLETIONS)
        yield compressed_post(body, "gzip", COMPLETIONS)


class LongNames(Posts):
    """2 KB that decode to a model name of 62 MB.

    It made a line of 131 MB in the log, and took 0.8 s of the loop.
    """

    name = "long-names"
    item = 4
    rate = 1 / 2

    def requests(self) -> Iterator[bytes]:
        yield compressed_post(long_name(LARGE_BYTES), path=COMPLETIONS)
        yield compressed_post(long_name(LARGE_BYTES // 6, b"\\u001b"), path=COMPLETIONS)


class LongFields(Posts):
    """Names and ids of 10 to 50 KB, with escape sequences, C1 controls, bidirectional marks.

    They were written to the log unescaped.
    """

    name = "long-fields"
    item = 4
    rate = 10.0

    def requests(self) -> Iterator[bytes]:
        nasty = "\x9b31m\u202e\u2066\u2028\ufeff\x85"
        body = long_name(50_000, b"\\u001b[2J")
        for name in (
            "x-llm-d-inference-fairness-id",
            "x-llm-d-inference-objective",
            "x-request-id",
            REWRITE,
        ):
            yield post(body, COMPLETIONS, {name: nasty * 1_000})
