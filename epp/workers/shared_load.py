"""Endpoint loads that include the requests of the other workers."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from epp.data_layer import EndpointSpec
from epp.scheduling import Endpoint, EndpointLoad
from epp.workers.flight_rows import SLOTS, OwnRow, PeerRow, key_of

_log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 0.05
"""Time between two readings of the rows without decisions: they end the rest of idle endpoints to
which other workers send requests."""

T = TypeVar("T")


class SharedLoad(EndpointLoad):
    """The load of one endpoint; the requests of this worker are written to its row.

    Args:
        row: The row of this worker.
        key: Key of the endpoint.
    """

    __slots__ = ("_row", "_slot", "_theirs", "is_leaving", "key")

    def __init__(self, row: OwnRow, key: int) -> None:
        super().__init__()
        self.key = key
        self.is_leaving = False
        self._theirs = 0
        """Requests of the other workers."""
        self._row = row
        self._slot = row.take_slot(key)

    @property
    def has_slot(self) -> bool:
        """Whether other workers can see it."""
        return self._slot is not None

    def start(self, now: float) -> None:
        super().start(now)
        if self._slot is not None:
            self._row.add(self._slot, 1, now)

    def end(self, now: float) -> None:
        super().end(now)
        slot = self._slot
        if slot is not None and not self._row.add(slot, -1, now) and self.is_leaving:
            self.leave()

    def shift(self, change: int, at: float | None) -> None:
        """Count more or fewer requests of the other workers.

        It works like :meth:`share`, but keeps no record for each source: the rows hold the numbers
        of each worker.

        Args:
            change: How many more.
            at: Time of the change, as for :meth:`share`.
        """
        self._theirs += change
        self._shift(change, at)

    def set_theirs(self, in_flight: int) -> None:
        """Set the number of requests of the other workers, as of now."""
        if in_flight != self._theirs:
            self.shift(in_flight - self._theirs, None)

    def join(self) -> None:
        """Undo :meth:`leave`: the endpoint has come back to the pool."""
        self.is_leaving = False
        if self._slot is None:
            self._slot = slot = self._row.take_slot(self.key)
            if slot is not None and self.own_in_flight:
                self._row.add(slot, self.own_in_flight, 0.0)  # as of long ago

    def leave(self) -> None:
        """Free the slot, now or at the end of the last request."""
        self.is_leaving = True
        if self._slot is not None and not self.own_in_flight:
            self._row.give_slot(self._slot)
            self._slot = None


class SharedLoads:
    """The loads of a pool; a listener of its store.

    Args:
        memory: The shared memory.
        index: Number of this worker.
        count: Number of all workers.
        looked: Called after each look of :meth:`run`.
    """

    def __init__(
        self,
        memory: memoryview,
        index: int,
        count: int,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._looked = looked
        self._row = OwnRow(memory, index)
        self._peers = [PeerRow(memory, each) for each in range(count) if each != index]
        self._loads: dict[int, SharedLoad] = {}
        self._logged_full = False

    def make(self, spec: EndpointSpec) -> SharedLoad:
        """Return the load of a new endpoint."""
        key = key_of(spec.name, spec.address, spec.incarnation)
        load = SharedLoad(self._row, key)
        if not load.has_slot and not self._logged_full:
            self._logged_full = True
            _log.warning(
                "requests to some endpoints are not shared between workers",
                endpoint=spec.name,
                reason=f"a worker shares those of {SLOTS} endpoints",
            )
        return load

    def endpoint_added(self, endpoint: Endpoint) -> None:
        load = endpoint.load
        assert isinstance(load, SharedLoad)  # noqa: S101 - made above
        load.join()
        self._loads[load.key] = load
        load.set_theirs(sum(peer.in_flight.get(load.key, 0) for peer in self._peers))

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        load = endpoint.load
        assert isinstance(load, SharedLoad)  # noqa: S101 - made above
        if self._loads.get(load.key) is load:
            del self._loads[load.key]
        load.set_theirs(0)
        load.leave()

    def look(self, *, is_thorough: bool = False) -> None:
        """Apply the changes of the other workers."""
        loads = self._loads
        for peer in self._peers:
            for key, change, at in peer.changes(is_thorough=is_thorough):
                load = loads.get(key)
                if load is not None:
                    load.shift(change, at)

    def before(self, read: Callable[[], T]) -> Callable[[], T]:
        """Return ``read`` with a :meth:`look` before each call."""

        def looked() -> T:
            self.look()
            return read()

        return looked

    async def run(self) -> None:
        """Read the rows periodically until cancelled."""
        while True:
            self.look(is_thorough=True)
            self._looked()
            await asyncio.sleep(_LOOK_SECONDS)
