"""Hot reload of the configuration: read the files, build a new graph, swap it in.

Reading and importing run in a thread, construction and the swap on the event loop. On any error the
current graph stays in use; the problems are logged once and counted in metrics. A graph that makes
requests fail is rolled back (:mod:`.rollback`), and its version is refused until the files change.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import structlog

from epp.config.changes import Fate, changes
from epp.config.errors import ConfigError
from epp.config.graph import PluginGraph, version_of
from epp.config.loader import LoadedConfig, load_file
from epp.config.registry import PluginRegistry, PluginTypes, plugin_files
from epp.config.rollback import Cause, RollbackSettings, RollbackWatch
from epp.inputs import SettledChanges
from epp.observability import ConfigMetrics, ReloadResult

_log = structlog.get_logger(__name__)


class GraphUser(Protocol):
    """Owner of the current plugin graph."""

    graph: PluginGraph
    """The graph in use."""

    def build(self, config: LoadedConfig, types: PluginTypes) -> PluginGraph:
        """Build a graph that keeps the unchanged instances of the current one.

        Raises:
            ConfigError: The configuration is invalid.
        """

    async def swap(self, graph: PluginGraph) -> None:
        """Replace the current graph with ``graph``.

        Raises:
            ConfigError: ``graph`` cannot be used; the current graph stays in use.
        """

    def forget_previous(self) -> None:
        """Release the graph before the last swap, which is kept for dry runs; idempotent."""


class ReloadOutcome(NamedTuple):
    """The outcome of a reload."""

    at: float
    """Seconds of the clock."""
    result: ReloadResult | Literal["unchanged"]
    problem: str = ""
    """Why it was refused or rolled back; "" if it was not."""


class ConfigReloader:
    """Follows one configuration file and the plugin files it names.

    Args:
        path: The configuration file; None while there is none.
        user: Owns the graph in use.
        registry: Finds plugin classes.
        metrics: Counts reloads.
        clock: Monotonic clock in seconds.
        rollback: When to roll a reload back.
        poll_seconds: Time between two polls of the files. A change is applied once two polls in a
            row find the same content, so that a half-written file is not read.
        choose: Returns the file to follow from now on, or None for the current one; called at each
            poll, in a thread. None to follow ``path`` throughout.
    """

    def __init__(
        self,
        path: Path | None,
        user: GraphUser,
        *,
        registry: PluginRegistry,
        metrics: ConfigMetrics,
        clock: Callable[[], float],
        rollback: RollbackSettings | None = None,
        poll_seconds: float = 0.5,
        choose: Callable[[], Path | None] | None = None,
    ) -> None:
        self._path = path
        self._user = user
        self._registry = registry
        self._metrics = metrics
        self._poll_seconds = poll_seconds
        self.outcomes = RollbackWatch(
            rollback or RollbackSettings(), clock=clock, give_up=self._give_up
        )
        """Watches requests; the owner must report the outcome of each."""
        self._choose = choose
        self._files = frozenset(() if path is None else (path,))
        self._changes = SettledChanges()
        self._previous: PluginGraph | None = None
        self._refused_version = ""
        self._last_fault = ""
        self._clock = clock
        self.last_outcome: ReloadOutcome | None = None
        """The outcome of the last reload; None before the first one."""
        self.former_text: str | None = None
        """Text of the configuration before the one in use; None for no former one."""
        self._wake = asyncio.Event()
        self._asked: asyncio.Future[str] | None = None
        self._cause: Cause | None = None
        """Why the graph in use is to be rolled back; None if it is not."""

    @property
    def fault(self) -> str:
        """Why the current files are not in use; "" if they are."""
        return self._last_fault

    def reload_now(self) -> "asyncio.Future[str]":
        """Read the files again without waiting for a change (SIGHUP).

        Returns: A future with :attr:`fault` as it is after they have been read.
        """
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        self._wake.set()
        return self._asked

    async def run(self) -> None:
        """Follow the files until cancelled."""
        try:
            await self._follow()
        finally:
            self._settle(self._asked)

    async def _follow(self) -> None:
        while True:
            if self._cause is not None:
                await self._roll_back(self._cause)
            if not self.outcomes.is_watching:
                self._user.forget_previous()
            is_change = await asyncio.to_thread(self._poll)
            asked, self._asked = self._asked, None
            try:
                if self._path is not None and (asked is not None or is_change):
                    await self._reload(is_asked=asked is not None)
            finally:
                self._settle(asked)
            await self._tick()

    def _settle(self, asked: "asyncio.Future[str] | None") -> None:
        if asked is not None and not asked.done():
            asked.set_result(self._last_fault)

    def _poll(self) -> bool:
        chosen = None if self._choose is None else self._choose()
        if chosen is not None and chosen != self._path:
            self._path = chosen
            self._files = frozenset({chosen})
        return self._changes.poll(self._files)

    async def _tick(self) -> None:
        try:
            async with asyncio.timeout(self._poll_seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _reload(self, *, is_asked: bool) -> None:
        """Load the files and swap to their configuration; log each distinct problem once."""
        try:
            config, types = await asyncio.to_thread(self._read)
            before = self._user.graph
            version = version_of(config, types)
            if version == before.version:
                self._note_unchanged(is_asked=is_asked)
                return
            self._refuse_again(version)
            graph = self._user.build(config, types)
            await self._user.swap(graph)
        except ConfigError as error:
            self._note_fault(str(error), is_asked=is_asked)
            return
        except Exception as error:  # a bug in a plugin; the reload loop must survive it
            self._note_fault(f"{type(error).__name__}: {error}", is_asked=is_asked, bug=error)
            return
        self._previous = before
        self._refused_version = self._last_fault = ""
        self._cause = None  # it was about the graph that is now replaced
        self.former_text = before.config.text
        self.last_outcome = ReloadOutcome(self._clock(), "success")
        self.outcomes.reloaded()
        self._metrics.reloaded("success")
        _log.info("configuration reloaded", **self._facts(graph), **_plugins_by_fate(before, graph))

    def _read(self) -> tuple[LoadedConfig, PluginTypes]:
        path = self._path
        assert path is not None  # noqa: S101 - without a file, nothing is reloaded
        polled = self._files
        try:
            config = load_file(path, inspect=self._registry.inspector(path.parent))
            self._files = frozenset({path, *plugin_files(config)})
            return config, self._registry.prepare(config)
        finally:
            self._changes.mark_read(polled)

    def _refuse_again(self, version: str) -> None:
        if version == self._refused_version:
            raise ConfigError(
                f"{self._path}: this version was taken back because requests failed with it;"
                " change it, or restart to use it all the same"
            )

    async def _roll_back(self, cause: Cause) -> None:
        """Return to the previous graph, rebuilt from memory, not from the files."""
        self._cause = None
        previous, self._previous = self._previous, None
        failing = self._user.graph
        if previous is None:
            return
        self._refused_version = failing.version
        try:
            graph = self._user.build(previous.config, previous.types)
            await self._user.swap(graph)
        except Exception:
            self._metrics.reloaded("failure")
            _log.exception("configuration not taken back, requests go on failing")
            return
        self._metrics.reloaded("rollback")
        self.former_text = failing.config.text
        problem = ", ".join(f"{name} {value}" for name, value in cause.items())
        self.last_outcome = ReloadOutcome(self._clock(), "rollback", problem)
        _log.error(
            "configuration taken back because requests failed with it",
            refused_digest=failing.config.digest,
            **cause,
            **self._facts(graph),
            **_plugins_by_fate(failing, graph),
        )

    def _give_up(self, cause: Cause) -> None:
        self._cause = cause
        self._wake.set()

    def _note_unchanged(self, *, is_asked: bool) -> None:
        self._metrics.unchanged()
        if is_asked or self._last_fault:
            _log.info("configuration unchanged", **self._facts(self._user.graph))
            self.last_outcome = ReloadOutcome(self._clock(), "unchanged")
        self._last_fault = ""

    def _note_fault(self, text: str, *, is_asked: bool, bug: Exception | None = None) -> None:
        if text == self._last_fault and not is_asked:
            return
        self._last_fault = text
        self.last_outcome = ReloadOutcome(self._clock(), "failure", text)
        self._metrics.reloaded("failure")
        _log.error(
            "configuration refused, the one in use stays",
            path=str(self._path),
            problems=text.splitlines(),
            exc_info=bug,
        )

    def _facts(self, graph: PluginGraph) -> dict[str, str]:
        return {"path": str(self._path), "digest": graph.config.digest}


def _plugins_by_fate(before: PluginGraph, after: PluginGraph) -> dict[str, list[str]]:
    """Return the names of the changed plugins by their fate, for the log event."""
    found = changes(before, after)
    names = {
        fate.value: [each.name for each in found if each.fate is fate]
        for fate in Fate
        if fate is not Fate.KEPT
    }
    # Extensions, such as session plugins, are not instances; list those that were rebuilt.
    names[Fate.REBUILT.value] += [
        f"extensions.{section}"
        for section, made in after.extensions.items()
        if made is not before.extensions.get(section)
    ]
    return names
