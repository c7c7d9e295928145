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

from epp.replication.messages import PluginState, PoolState
from epp.replication.peers import Peer
from epp.replication.plugins import CrossReplicaContributor, FactSharer, replica_key
from epp.scheduling import Endpoint, Plugin

_log = structlog.get_logger(__name__)

MAX_PART_BYTES: Final = 64 << 10
"""Facts in one message: 8192 blocks of prompts, which another replica adds within 1 ms."""
FACTS_SECONDS: Final = 0.1
"""Pause between two messages with facts, unless more are waiting."""
_EARLY_SECONDS: Final = 0.005
"""How much earlier facts may be sent, because timers of the event loop may fire early."""
CONTRIBUTION_BYTES_PER_SECOND: Final = 512 << 10
"""Long contributions are sent less often, so that each plugin sends at most this."""
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


@dataclass(slots=True, eq=False)
class _Contributing:
    """A plugin that contributes."""

    plugin: CrossReplicaContributor
    sent: bytes = b""
    """The contribution as last sent."""
    due_at: float = 0.0


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
        self._contributors: dict[str, _Contributing] = {}
        self._sharers: dict[str, FactSharer] = {}
        self._started: set[int] = set()
        """Ids of the plugins that remember new facts."""
        self._interval_seconds = 0.0
        self._facts_at = 0.0
        self._has_more_facts = False
        self.wants_facts = False
        """Whether a plugin needs the facts of others, as it is new; reset by the reader."""

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
        self._interval_seconds = interval_seconds
        before = self._contributors
        self._contributors, self._sharers = {}, {}
        for plugin in plugins:
            if isinstance(plugin, CrossReplicaContributor) and plugin.contributes:
                known = before.get(plugin.name)
                is_same = known is not None and known.plugin is plugin
                self._contributors[plugin.name] = (
                    known if known is not None and is_same else _Contributing(plugin)
                )
            if isinstance(plugin, FactSharer):
                self._sharers[plugin.name] = plugin
        started = {id(each) for each in self._sharers.values()}
        for each in self._sharers.values():
            if id(each) not in self._started:
                each.start_sharing()
                self.wants_facts = True
        self._started = started

    def end(self) -> None:
        """Stop sharing, and forget the state of other replicas."""
        self._ended(self)
        for replica in tuple(self._numbers):
            self.forget(replica)

    # --- sending ----------------------------------------------------------------------------------

    def is_urgent(self, peers: Iterable[Peer]) -> bool:
        """Return whether these replicas need more than some facts every 0.1 s."""
        return bool(self._contributors) or self._has_more_facts or self._sends_requests(peers)

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
        plugins = [*self._contributions(now, is_whole=is_whole), *self._new_facts(now)]
        if not (in_flight or plugins or is_whole):
            return None
        return PoolState(self.pool, is_whole, in_flight, plugins)

    def all_facts(self) -> Iterator[PoolState]:
        """Return all facts of the plugins, in parts, for a replica that joins."""
        for plugin in tuple(self._sharers.values()):
            try:
                for facts in plugin.all_facts(MAX_PART_BYTES):
                    state = PluginState(plugin.name, plugin.type, False, facts)
                    yield PoolState(self.pool, False, {}, [state])
            except Exception:
                _log.exception("plugin failed to share its state", plugin=plugin.name)

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

    def _contributions(self, now: float, *, is_whole: bool) -> Iterator[PluginState]:
        for name, each in self._contributors.items():
            if now < each.due_at and not is_whole:
                continue
            if each.plugin.is_of_queues and not self.owns_queues():
                continue
            try:
                data = each.plugin.contribution()
            except Exception:
                _log.exception("plugin failed to share its state", plugin=name)
                continue
            if is_whole or data != each.sent:
                each.sent = data
                pause = max(self._interval_seconds, len(data) / CONTRIBUTION_BYTES_PER_SECOND)
                each.due_at = now + pause
                yield PluginState(name, each.plugin.type, True, data)

    def _new_facts(self, now: float) -> Iterator[PluginState]:
        if now < self._facts_at:
            return
        self._facts_at = now + FACTS_SECONDS - _EARLY_SECONDS
        self._has_more_facts = False
        for name, plugin in self._sharers.items():
            try:
                facts = plugin.new_facts(MAX_PART_BYTES)
            except Exception:
                _log.exception("plugin failed to share its state", plugin=name)
                continue
            if facts:
                yield PluginState(name, plugin.type, False, facts)
            if len(facts) > MAX_PART_BYTES // 2:  # more may be waiting
                self._facts_at = now
                self._has_more_facts = True

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
            self._take(replica, each)

    def forget(self, replica: str) -> None:
        """Forget the requests that a replica has in flight, and its contributions."""
        for key in self._numbers.pop(replica, {}):
            if (tracked := self._tracked.get(key)) is not None:
                self._share(tracked.endpoint, replica, 0)
        for name, each in self._contributors.items():
            try:
                each.plugin.replica_left(replica)
            except Exception:
                _log.exception("plugin failed to forget a replica", plugin=name)

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

    def _take(self, replica: str, state: PluginState) -> None:
        try:
            if not state.is_contribution:
                sharer = self._sharers.get(state.plugin)
                if sharer is not None and sharer.type == state.type:
                    sharer.learn(state.data)
                return
            contributing = self._contributors.get(state.plugin)
            if contributing is not None and contributing.plugin.type == state.type:
                contributing.plugin.receive(replica, state.data)
        except Exception:
            _log.exception(
                "plugin failed to take the state of a replica", plugin=state.plugin, replica=replica
            )
