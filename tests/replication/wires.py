"""Replicas on a manual clock, and a wire between them that drops messages on demand."""

from collections.abc import Callable, Collection, Iterator, Sequence

from epp.replication import Carrier, Inbox, PoolShare, Replica
from epp.replication.replica import TICK_SECONDS
from epp.scheduling import Plugin
from epp.testing import make_endpoint

LEASE_SECONDS = 2.0
POOL = "default"


class Clock:
    """A clock that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class WireCarrier(Carrier):
    """One end of a wire."""

    def __init__(self, wire: "Wire", name: str) -> None:
        self.wire = wire
        self.name = name
        self.is_cut = False
        self.inbox: Inbox | None = None

    @property
    def is_connected(self) -> bool:
        return not self.is_cut

    def send(self, message: bytes, recipient: str = "") -> bool:
        self.wire.sent.append((self, message, recipient))
        return True

    async def run(self, inbox: Inbox) -> None:
        raise AssertionError("a test calls the replica itself")


class Wire:
    """Carries messages when a test says so; `loses` decides which ones are lost."""

    def __init__(self) -> None:
        self.sent: list[tuple[WireCarrier, bytes, str]] = []
        self.ends: list[WireCarrier] = []
        self.loses: Callable[[bytes], bool] = lambda message: False

    def deliver(self) -> None:
        """Bring what was sent; senders hear their own messages, too."""
        sent, self.sent = self.sent, []
        for sender, message, recipient in sent:
            if sender.is_cut or self.loses(message):
                continue
            for end in self.ends:
                if not end.is_cut and end.inbox is not None and recipient in {"", end.name}:
                    end.inbox.received(message)


class Node:
    """A replica with endpoints of its own, which have the same names in all replicas."""

    def __init__(
        self,
        wire: Wire,
        clock: Clock,
        name: str,
        *,
        incarnation: int = 1,
        endpoints: int = 2,
        plugins: Sequence[Plugin] = (),
        siblings: Collection[str] = (),
    ) -> None:
        self.carrier = WireCarrier(wire, name)
        self.clock = clock
        self.replica = Replica(
            name,
            self.carrier,
            lease_seconds=LEASE_SECONDS,
            clock=clock,
            incarnation=incarnation,
        )
        self.carrier.inbox = self.replica
        wire.ends.append(self.carrier)
        self.share: PoolShare = self.replica.share(POOL)
        self.share.siblings = frozenset(siblings)
        self.endpoints = [make_endpoint(f"e{index}") for index in range(endpoints)]
        for each in self.endpoints:
            self.share.endpoint_added(each)
        self.share.use_plugins(plugins, 0.0)

    def start(self, endpoint: int, count: int = 1) -> None:
        for _ in range(count):
            self.endpoints[endpoint].load.start(self.clock.now)

    def end(self, endpoint: int, count: int = 1) -> None:
        for _ in range(count):
            self.endpoints[endpoint].load.end(self.clock.now)

    @property
    def shared(self) -> list[int]:
        """What it knows that others have in flight, by endpoint."""
        return [each.load.shared_in_flight for each in self.endpoints]

    @property
    def own(self) -> list[int]:
        """What it has in flight itself."""
        return [each.load.own_in_flight for each in self.endpoints]


def pass_time(wire: Wire, clock: Clock, nodes: Sequence[Node], seconds: float) -> None:
    """Let all replicas send and receive for some time."""
    for _ in ticks(clock, seconds):
        for node in nodes:
            node.replica.tick()
        wire.deliver()


def ticks(clock: Clock, seconds: float) -> Iterator[None]:
    """Move the clock on, tick by tick."""
    for _ in range(round(seconds / TICK_SECONDS)):
        clock.now += TICK_SECONDS
        yield
