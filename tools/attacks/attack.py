"""Base of the attacks: malicious requests from a client or a model server.

An attack states its requirements on the gateway (:class:`Needs`), makes its bodies
(:meth:`prepare`) and runs until it is cancelled. Its rate is that at which the fault showed before
it was fixed, so that a run measures the gateway and not the number of CPUs.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import count
from typing import ClassVar

from tools.attacks.sending import Sender


class Setup(StrEnum):
    """The configuration of the endpoint picker and of the gateway."""

    DEFAULT = "default"
    FLOW = "flow-control"
    """The gateway sets a request's flow from the client's API key and ignores the client's own."""
    SELF_NAMED_FLOWS = "flow-control, flows named by clients"
    """The gateway keeps the flow that the client names."""


class Server(StrEnum):
    """A model server of the attacker, besides the healthy ones."""

    FAILING = "failing"
    """Answers 500 at once."""
    TALKATIVE = "talkative"
    """Answers as the request header ``x-response`` demands."""
    LARGE_PAGE = "large-page"
    """Like TALKATIVE, with a metrics page of 180 000 series."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of an attack on the gateway."""

    setups: tuple[Setup, ...] = (Setup.DEFAULT,)
    open_files: int = 0
    """Limit of the endpoint picker's file descriptors; 0 for none."""
    unread_log: bool = False
    """Nobody reads the log while the attack lasts."""
    servers: tuple[Server, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """Ports on 127.0.0.1."""

    gateway: int
    ext_proc: int
    health: int
    metrics: int

    def text(self) -> str:
        """Return the target for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "Target":
        """Return the target that :meth:`text` has written."""
        return cls(**json.loads(text))


Tally = Counter[str]
"""Outcomes of an attack's requests, with their number."""


class Attack(ABC):
    """One attack; its docstring tells the damage that it did before the fault was fixed."""

    name: ClassVar[str]
    item: ClassVar[int] = 0
    """Number in the list of known faults; 0 for others."""
    needs: ClassVar[Needs] = Needs()

    def prepare(self) -> None:  # noqa: B027 - most attacks that are no posts have nothing to do
        """Make the requests to send."""

    @abstractmethod
    async def run(self, target: Target, tally: Tally) -> None:
        """Attack until cancelled."""


class Posts(Attack):
    """An attack that sends prepared requests in turn at a rate, and reads the responses."""

    rate: ClassVar[float]
    """Requests a second."""
    burst: ClassVar[int] = 1
    """Requests sent at once; bursts are ``burst / rate`` seconds apart."""
    at_once: ClassVar[int] = 50
    """Maximum number of open requests; further ones are not sent."""

    def prepare(self) -> None:
        self._requests = list(self.requests())

    @abstractmethod
    def requests(self) -> Iterator[bytes]:
        """Yield HTTP/1.1 requests, heads included."""

    async def run(self, target: Target, tally: Tally) -> None:
        sender = Sender(target.gateway, tally, self.at_once)
        async with sender, asyncio.TaskGroup() as tasks:
            async for number in paced(self.rate / self.burst):
                for index in range(self.burst):
                    place = (number * self.burst + index) % len(self._requests)
                    sender.launch(tasks, self._requests[place])


async def paced(rate: float) -> AsyncIterator[int]:
    """Yield 0, 1, 2 … at ``rate`` per second, on schedule even if the caller is slow."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in count():
        await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
        yield number
