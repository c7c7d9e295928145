"""Base of the attacks: malicious requests from a client or a model server.

An attack says what it needs of the gateway (:class:`Needs`), makes its bodies (:meth:`prepare`) and
runs until it is cancelled. It is paced, so that the gateway is measured and not how many CPUs
there are: rates are those at which the fault showed before it was mended.
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
    """The gateway names a request's flow: by the client's API key, whatever the client says."""
    SELF_NAMED_FLOWS = "flow-control, flows named by clients"
    """The gateway believes what clients say."""


class Server(StrEnum):
    """A model server of the attacker's, beside the sound ones."""

    FAILING = "failing"
    """Answers 500 at once."""
    TALKATIVE = "talkative"
    """Answers as the request's header ``x-answer`` says."""
    LARGE_PAGE = "large-page"
    """As the talkative one, with a metrics page of 180 000 series."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of an attack on the gateway."""

    setups: tuple[Setup, ...] = (Setup.DEFAULT,)
    open_files: int = 0
    """Descriptors that the endpoint picker may have; 0 for any number."""
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
        """Return the target that ``text`` tells of."""
        return cls(**json.loads(text))


Tally = Counter[str]
"""Outcomes of an attack's requests, with their number."""


class Attack(ABC):
    """One attack; its docstring says what it did before."""

    name: ClassVar[str]
    item: ClassVar[int] = 0
    """Number in the list of known faults; 0 for others."""
    needs: ClassVar[Needs] = Needs()

    def prepare(self) -> None:  # noqa: B027 - most attacks that are no posts have nothing to do
        """Make what is to be sent."""

    @abstractmethod
    async def run(self, target: Target, tally: Tally) -> None:
        """Attack until cancelled."""


class Posts(Attack):
    """Requests that are all known beforehand, sent in turn at a rate, answers read."""

    rate: ClassVar[float]
    """Requests a second."""
    burst: ClassVar[int] = 1
    """So many at once, ``burst / rate`` seconds apart."""
    at_once: ClassVar[int] = 50
    """Requests that may be open; more are not sent."""

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
    """Yield 0, 1, 2 … so many times a second, on time however long the caller takes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in count():
        await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
        yield number
