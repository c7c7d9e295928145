"""The state of a pool's plugins that replicas exchange: contributions and facts.

Both are defined in :mod:`epp.replication.plugins`. A plugin that fails is logged and passed over:
it must not end the exchange of the others.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from epp.replication.messages import PluginState
from epp.replication.plugins import CrossReplicaContributor, FactSharer
from epp.scheduling import Plugin

_log = structlog.get_logger(__name__)

MAX_PART_BYTES: Final = 64 << 10
"""Facts in one message: 8192 blocks of prompts, which another replica adds within 1 ms."""
FACTS_SECONDS: Final = 0.1
"""Pause between two messages with facts, unless more are waiting."""
_EARLY_SECONDS: Final = 0.005
"""How much earlier facts may be sent, because timers of the event loop may fire early."""
CONTRIBUTION_BYTES_PER_SECOND: Final = 512 << 10
"""Long contributions are sent less often, so that each plugin sends at most this."""


@dataclass(slots=True, eq=False)
class _Contributing:
    """A plugin that contributes."""

    plugin: CrossReplicaContributor
    sent: bytes = b""
    """The contribution as last sent."""
    due_at: float = 0.0


class PluginStates:
    """The plugins of one pool that share state."""

    def __init__(self) -> None:
        self._contributors: dict[str, _Contributing] = {}
        self._sharers: dict[str, FactSharer] = {}
        self._started: set[int] = set()
        """Ids of the plugins that remember new facts."""
        self._interval_seconds = 0.0
        self._facts_at = 0.0
        self._has_more_facts = False
        self.wants_facts = False
        """Whether a plugin needs the facts of others, as it is new; reset by the reader."""

    def use(self, plugins: Iterable[Plugin], interval_seconds: float) -> None:
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

    @property
    def is_urgent(self) -> bool:
        """Whether there is more to send than some facts every 0.1 s."""
        return bool(self._contributors) or self._has_more_facts

    def changes(
        self, now: float, owns_queues: Callable[[], bool], *, is_whole: bool
    ) -> list[PluginState]:
        """Return what is due: changed contributions, or all, and new facts.

        Args:
            now: Seconds of the clock.
            owns_queues: Returns whether this process owns the queues of flow control.
            is_whole: Whether to return all contributions.
        """
        contributions = self._contributions(now, owns_queues, is_whole=is_whole)
        return [*contributions, *self._new_facts(now)]

    def all_facts(self) -> Iterator[PluginState]:
        """Return all facts, in parts, for a replica that joins."""
        for plugin in tuple(self._sharers.values()):
            try:
                for facts in plugin.all_facts(MAX_PART_BYTES):
                    yield PluginState(plugin.name, plugin.type, False, facts)
            except Exception:
                _log.exception("plugin failed to share its state", plugin=plugin.name)

    def take(self, replica: str, state: PluginState) -> None:
        """Pass the state of a plugin at another replica to the plugin of that name and type."""
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

    def forget(self, replica: str) -> None:
        """Drop the contributions of a replica."""
        for name, each in self._contributors.items():
            try:
                each.plugin.replica_left(replica)
            except Exception:
                _log.exception("plugin failed to forget a replica", plugin=name)

    def _contributions(
        self, now: float, owns_queues: Callable[[], bool], *, is_whole: bool
    ) -> Iterator[PluginState]:
        for name, each in self._contributors.items():
            if now < each.due_at and not is_whole:
                continue
            if each.plugin.is_of_queues and not owns_queues():
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
