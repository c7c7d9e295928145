"""Exchanges the state of one pool with other replicas.

The requests in flight are compared with the last sent numbers, 50 times a second, instead of noting
each start and end. So sharing adds no cost to a request, and a message has totals, which do no harm
if they arrive twice, late or not at all. The numbers of other replicas enter the effective loads of
the endpoints (:meth:`~epp.scheduling.EndpointLoad.share`).

Siblings, the workers of one host, read each other's requests in shared memory. Their numbers are
sent once a second, for the metrics, and change no loads.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from epp.replication.messages import PoolState
from epp.replication.peers import Peer
from epp.replication.plugin_states import PluginStates
from epp.replication.plugins import replica_key
from epp.scheduling import Endpoint, Plugin

_log = structlog.get_logger(__name__)

MAX_NUMBERS: Final = 20_000
"""Endpoints that one replica may have requests on; further ones are ignored."""


@dataclass(slots=True, eq=False)
class _Tracked:
    """An endpoint whose requests in flight are shared."""

    endpoint: Endpoint
    sent: int = 0
    """Its requests in flight as last sent."""
    is_gone: bool = False
    """Whether it has left the pool; it is tracked until its last request has ended."""


class PoolShare:
    """One pool's part of the exchange; a :class:`~epp.data_layer.store.PoolListener`.

    Args:
        pool: Name of the pool, equal in all replicas.
        ended: Called with this object when the pool ends.
    """

    def __init__(self, pool: str, ended: Callable[["PoolShare"], None]) -> None:
        self.pool = pool
        self.owns_queues: Callable[[], bool] = lambda: True
        """Whether this process owns the queues of flow control."""
        self.siblings: frozenset[str] = frozenset()
        """Replicas that know each other's requests in flight from another source."""
        self._ended = ended
        self._tracked: dict[int, _Tracked] = {}
        self._numbers: dict[str, dict[int, int]] = {}
        """Requests in flight by replica and endpoint, without zeros."""
        self._plugins = PluginStates()

    # --- what is shared ---------------------------------------------------------------------------

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Track ``endpoint``, and count the requests that other replicas have in flight there."""
        key = replica_key(endpoint)
        known = self._tracked.get(key)
        if known is None or known.endpoint is not endpoint:
            self._tracked[key] = _Tracked(endpoint)
        else:
            known.is_gone = False
        for replica, numbers in self._numbers.items():
            self._share(endpoint, replica, numbers.get(key, 0))

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """Stop counting the requests that other replicas have in flight on ``endpoint``."""
        tracked = self._tracked.get(replica_key(endpoint))
        if tracked is not None and tracked.endpoint is endpoint:
            tracked.is_gone = True
        for replica in self._numbers:
            self._share(endpoint, replica, 0)

    def use_plugins(self, plugins: Iterable[Plugin], interval_seconds: float) -> None:
        """Share the state of ``plugins``, in place of the previous ones.

        Args:
            plugins: All plugins in use.
            interval_seconds: Shortest time between two contributions of a plugin.
        """
        self._plugins.use(plugins, interval_seconds)

    def asks_for_facts(self) -> bool:
        """Return whether a plugin needs the facts of others, as it is new; once for each one."""
        wants_facts, self._plugins.wants_facts = self._plugins.wants_facts, False
        return wants_facts

    def end(self) -> None:
        """Stop sharing, and forget the state of other replicas."""
        self._ended(self)
        for replica in tuple(self._numbers):
            self.forget(replica)

    # --- sending ----------------------------------------------------------------------------------

    def is_urgent(self, peers: Iterable[Peer]) -> bool:
        """Return whether these replicas need more than some facts every 0.1 s."""
        return self._plugins.is_urgent or self._sends_requests(peers)

    def changes(
        self, now: float, peers: Iterable[Peer] = (), *, is_whole: bool
    ) -> PoolState | None:
        """Return the changes since the last call; None if there are none.

        Args:
            now: Seconds of the clock.
            peers: The replicas that receive it.
            is_whole: Whether to return all requests in flight and all contributions.
        """
        includes_requests = is_whole or self._sends_requests(peers)
        in_flight = self._in_flight(is_whole=is_whole) if includes_requests else {}
        plugins = self._plugins.changes(now, self.owns_queues, is_whole=is_whole)
        if not (in_flight or plugins or is_whole):
            return None
        return PoolState(self.pool, is_whole, in_flight, plugins)

    def all_facts(self) -> Iterator[PoolState]:
        """Return all facts of the plugins, in parts, for a replica that joins."""
        for state in self._plugins.all_facts():
            yield PoolState(self.pool, False, {}, [state])

    def _sends_requests(self, peers: Iterable[Peer]) -> bool:
        siblings = self.siblings
        return not siblings or any(each.name not in siblings for each in peers)

    def _in_flight(self, *, is_whole: bool) -> dict[int, int]:
        changed: dict[int, int] = {}
        ended: list[int] = []
        for key, each in self._tracked.items():
            load = each.endpoint.load
            own = load.in_flight - load.shared_in_flight
            if own != each.sent:
                each.sent = changed[key] = own
            elif is_whole and own:
                changed[key] = own
            elif each.is_gone and not own:
                ended.append(key)
        for key in ended:
            del self._tracked[key]
        return changed

    # --- what others send -------------------------------------------------------------------------

    def apply(self, replica: str, state: PoolState, changed_at: float | None) -> None:
        """Apply the state that a replica has sent.

        Args:
            replica: Its name.
            state: The state of this pool there.
            changed_at: About when the requests in flight changed, in seconds of the clock of the
                loads; None if unknown.
        """
        numbers = self._numbers.get(replica)
        if numbers is None:
            numbers = self._numbers[replica] = {}
            changed_at = None  # most of these requests are older
        if state.is_whole:
            for key in numbers.keys() - state.in_flight.keys():
                self._count(replica, numbers, key, 0, changed_at)
        for key, number in state.in_flight.items():
            self._count(replica, numbers, key, number, changed_at)
        for each in state.plugins:
            self._plugins.take(replica, each)

    def forget(self, replica: str) -> None:
        """Forget the requests that a replica has in flight, and its contributions."""
        for key in self._numbers.pop(replica, {}):
            if (tracked := self._tracked.get(key)) is not None:
                self._share(tracked.endpoint, replica, 0)
        self._plugins.forget(replica)

    def in_flight_of(self, replica: str) -> int:
        """Return the requests that a replica has in flight; thread-safe."""
        return sum(tuple(self._numbers.get(replica, {}).values()))

    def _count(
        self, replica: str, numbers: dict[int, int], key: int, number: int, at: float | None
    ) -> None:
        if number <= 0:
            numbers.pop(key, None)
        elif key in numbers or len(numbers) < MAX_NUMBERS:
            numbers[key] = number
        else:
            return
        tracked = self._tracked.get(key)
        if tracked is not None and not tracked.is_gone:
            self._share(tracked.endpoint, replica, number, at)

    def _share(
        self, endpoint: Endpoint, replica: str, number: int, at: float | None = None
    ) -> None:
        """Count the requests of ``replica`` on ``endpoint``, unless it is a sibling."""
        if replica not in self.siblings:
            endpoint.load.share(replica, number, at)
