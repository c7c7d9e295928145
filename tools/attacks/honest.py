"""Legitimate clients: small requests at a fixed rate, through the endpoint picker and around it.

Each second 50 requests go through the gateway and as many through the same Envoy to the same
servers without the endpoint picker, in turn. A process of their own sends them on schedule however
slow the responses are, and compares each response with the expected one.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import uvloop

from epp.lab.load.client import ConnectionPool
from tools.attacks.listed_clients import API_KEY, FAIRNESS
from tools.attacks.sending import HOST, exchanged
from tools.faults.traffic import Kind, Response, Verdict, http_request

TIMEOUT_SECONDS = 20.0
"""Time after which an honest client gives up."""
TENANTS = 25
"""Enough that the demand of each stays below its fair share when attacks slow the gateway down: of
5 tenants with 10 requests a second each, some demanded more than a busy machine could serve."""
LONG_EACH, LONG_WORDS = 200, 4_800
"""Each 200th request has 24 KB: few enough not to change the percentiles."""
KINDS = (Kind("stream", 2, stream=True), Kind("whole", 2, stream=False))
FAILING = b"x-failing"
"""Header of the responses of the server that fails on purpose."""


@dataclass(slots=True)
class Path:
    """Outcomes of the honest requests on one path."""

    seconds: list[float] = field(default_factory=list)
    """Durations of the successful requests."""
    failed: Counter[str] = field(default_factory=Counter)
    """Failed requests by error."""
    by_failing_server: int = 0
    """500s of the server that fails on purpose; they count neither as successful nor as failed."""


@dataclass(slots=True)
class Honest:
    """Outcomes of all honest requests."""

    gateway: Path
    direct: Path

    def text(self) -> str:
        """Return the outcomes as JSON, for another process."""
        ways = {"gateway": self.gateway, "direct": self.direct}
        return json.dumps(
            {name: [way.seconds, way.failed, way.by_failing_server] for name, way in ways.items()}
        )

    @classmethod
    def of(cls, text: str) -> "Honest":
        """Parse the result of :meth:`text`."""
        read = json.loads(text).items()
        return cls(**{name: Path(each[0], Counter(each[1]), each[2]) for name, each in read})


class Clients:
    """Sends honest requests on one path."""

    def __init__(self, port: int) -> None:
        self._pool = ConnectionPool(HOST, port)
        self.seen = Path()

    async def ask(self, number: int, words: int) -> None:
        """Send a request and judge its response."""
        kind = KINDS[number % len(KINDS)]
        document = kind.document(f"{number} " + "word " * words)
        tenant = f"tenant-{number % TENANTS}"
        names = f"{FAIRNESS}: {tenant}\r\n{API_KEY}: {tenant}"
        request = http_request("gateway", document, names)
        response, began = Response(), time.perf_counter()
        why = await exchanged(self._pool, request, response, TIMEOUT_SECONDS)
        if not why and response.verdict(kind, is_complete=True) is Verdict.WHOLE:
            self.seen.seconds.append(time.perf_counter() - began)
        elif FAILING in response.headers:
            self.seen.by_failing_server += 1
        else:
            self.seen.failed[why or f"{response.status} {bytes(response.body[:90])!r}"] += 1

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()


async def send(gateway: int, direct: int, rate: float) -> Honest:
    """Send on both paths until the input ends, and wait for the last responses."""
    chooser = Random(3)
    ways = Clients(gateway), Clients(direct)
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.read), name="stop")
    began, number = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        while not stop.done():
            words = LONG_WORDS if number % LONG_EACH == 0 else chooser.choice((5, 50, 200))
            for offset, way in enumerate(ways):
                due = began + (number + offset / len(ways)) / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                tasks.create_task(way.ask(number, words))
            number += 1
    for way in ways:
        await way.aclose()
    return Honest(*(way.seen for way in ways))


def main() -> None:
    """Read the command line, send the requests, and print the outcomes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", type=int, required=True)
    parser.add_argument("--direct", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    given = parser.parse_args()
    print("ready", flush=True)
    sys.stdin.readline()
    print(uvloop.run(send(given.gateway, given.direct, given.rate)).text(), flush=True)


if __name__ == "__main__":
    main()
