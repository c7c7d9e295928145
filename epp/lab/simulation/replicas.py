"""Several replicas of the endpoint picker, which share their state with a delay, as one router.

The gateway sends requests to them in turn, as Envoy does with the hosts of a cluster.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

from epp.lab.simulation.picker import PickerRouter
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import Cancel, Receive, Router
from epp.replication import Carrier, Inbox, Replica

LEASE_SECONDS = 2.0
"""As ``--replica-lease``."""


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """How many replicas decide, and how fast they share their state."""

    count: int = 1
    delay_seconds: float | None = 0.001
    """Time that a message takes; None if they share nothing."""


ONE_REPLICA = ReplicaPlan()


class ReplicaBus:
    """Carries messages between replicas on one event loop.

    Args:
        loop: The loop.
        delay_seconds: Time that a message takes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_seconds: float) -> None:
        self._loop = loop
        self._delay_seconds = delay_seconds
        self._carriers: dict[str, BusCarrier] = {}

    def carrier(self, name: str) -> "BusCarrier":
        """Return the carrier of the replica ``name``."""
        carrier = self._carriers[name] = BusCarrier(self)
        return carrier

    def deliver(self, sender: "BusCarrier", message: bytes, recipient: str) -> None:
        """Deliver a message to one replica, or to all others for an empty name."""
        for name, carrier in self._carriers.items():
            if carrier is not sender and recipient in {"", name}:
                self._loop.call_later(self._delay_seconds, carrier.receive, message)


class BusCarrier(Carrier):
    """One replica's end of a bus."""

    def __init__(self, bus: ReplicaBus) -> None:
        self._bus = bus
        self._inbox: Inbox | None = None
        self._is_cut = False

    @property
    def is_connected(self) -> bool:
        return self._inbox is not None and not self._is_cut

    def cut(self) -> None:
        """Cut the connection: messages are lost until `mend`."""
        self._is_cut = True

    def mend(self) -> None:
        """Connect again."""
        self._is_cut = False
        if self._inbox is not None:
            self._inbox.joined()

    def send(self, message: bytes, recipient: str = "") -> bool:
        if not self.is_connected:
            return False
        self._bus.deliver(self, message, recipient)
        return True

    def receive(self, message: bytes) -> None:
        """Pass a message from the bus to the replica."""
        if self._inbox is not None and not self._is_cut:
            self._inbox.received(message)

    async def run(self, inbox: Inbox) -> None:
        self._inbox = inbox
        inbox.joined()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._inbox = None


class ReplicatedRouter(Router):
    """Lets replicas of the endpoint picker decide in turn.

    Args:
        plan: Their number, and what they share.
        make: Makes the router of one replica; the argument is None if it shares nothing.
        loop: The virtual loop.
    """

    def __init__(
        self,
        plan: ReplicaPlan,
        make: Callable[[Replica | None], PickerRouter],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._replicas: list[Replica] = []
        if plan.delay_seconds is None:
            self._routers: Sequence[PickerRouter] = [make(None) for _ in range(plan.count)]
        else:
            bus = ReplicaBus(loop, plan.delay_seconds)
            self._replicas = [
                Replica(
                    name := f"replica-{index}",
                    bus.carrier(name),
                    lease_seconds=LEASE_SECONDS,
                    clock=loop.time,
                    incarnation=index,
                )
                for index in range(plan.count)
            ]
            self._routers = [make(replica) for replica in self._replicas]
        self._turns = cycle(self._routers)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [self._loop.create_task(each.run()) for each in self._replicas]
        for router in self._routers:
            await router.start()

    async def stop(self) -> None:
        for router in self._routers:
            await router.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def route(self, request: SimulatedRequest, receive: Receive) -> Cancel | None:
        return next(self._turns).route(request, receive)
