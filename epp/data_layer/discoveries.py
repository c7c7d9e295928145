"""Run the discoveries of a pool and replace one on a configuration reload.

The new discovery starts while the old one still runs, and its first report is held back until the
new configuration is swapped in. Then its endpoints replace the old ones in one step, so that the
pool is never empty in between, and servers that both report keep their metrics and load.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from epp.data_layer.errors import DataLayerError, DiscoveryError, DuplicateEndpointError
from epp.data_layer.plugins import EndpointDiscovery, EndpointSpec
from epp.data_layer.store import EndpointStore

_log = structlog.get_logger(__name__)

FIRST_REPORT_SECONDS: Final = 10.0
"""How long a new discovery may take until its first report; then the reload fails."""


class _Run:
    """One running discovery: its task, and the ``EndpointSink`` that feeds the store.

    Args:
        store: The pool.
        discovery: The discovery to run.
        is_held: Hold its reports back until :meth:`release`. A failure before the first report is
            then stored in ``fault`` instead of being raised.
    """

    def __init__(
        self, store: EndpointStore, discovery: EndpointDiscovery, *, is_held: bool
    ) -> None:
        self.discovery = discovery
        self.begun = asyncio.Event()
        """Set by the first report, or by a failure before it."""
        self.fault: Exception | None = None
        self.sources: set[str] = set()
        """Source names under which it has reported endpoints."""
        self._store = store
        self._is_over = False
        self._held: dict[str, Sequence[EndpointSpec]] | None = {} if is_held else None
        self._task: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run it in ``group`` until :meth:`end`."""
        self._task = group.create_task(self._run(), name=f"discovery-{self.discovery.name}")

    async def _run(self) -> None:
        name = self.discovery.name
        try:
            await self.discovery.run(self)
        except Exception as error:
            if self.begun.is_set():
                _log.exception("discovery failed, its last endpoints stay", discovery=name)
                return
            if self._held is None:
                raise
            self.fault = error
            self.begun.set()

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        if self._is_over:
            return
        if self._held is not None:
            self._held[source] = tuple(specs)
        else:
            self._store.replace_endpoints(source, specs)
            self.sources.add(source)
        self.begun.set()

    def release(self, instead_of: "_Run | None") -> None:
        """Pass the held reports, and all later ones, to the store.

        Raises:
            DuplicateEndpointError: Another discovery has an endpoint of the same name; nothing has
                changed.
        """
        held, self._held = self._held or {}, None
        replaced = set() if instead_of is None else instead_of.sources
        self._store.replace_sources(held, instead_of=replaced)
        self.sources.update(held)

    def end(self) -> None:
        """Stop the discovery; its endpoints stay in the pool."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()


class Discoveries:
    """Runs discoveries that report to one store.

    Args:
        store: The pool.
        fixed: Discoveries that run until shutdown.
        chosen: The discovery of the configuration, which a reload may replace.
    """

    def __init__(
        self,
        store: EndpointStore,
        fixed: Iterable[EndpointDiscovery],
        chosen: EndpointDiscovery | None,
    ) -> None:
        self._store = store
        self._fixed = [_Run(store, discovery, is_held=False) for discovery in fixed]
        self._chosen = None if chosen is None else _Run(store, chosen, is_held=False)
        self._next: _Run | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run all discoveries until cancelled.

        Raises:
            ExceptionGroup: One of the initial discoveries failed before its first report.
        """
        async with asyncio.TaskGroup() as group:
            self._group = group
            for run in (*self._fixed, *([] if self._chosen is None else [self._chosen])):
                run.start(group)
            await asyncio.Event().wait()

    async def prepare(self, discovery: EndpointDiscovery | None) -> None:
        """Start ``discovery``, unless it is running, and wait for its first report.

        Raises:
            DiscoveryError: It failed, or took longer than ``FIRST_REPORT_SECONDS``.
        """
        if self._next is not None:  # from a failed reload
            self._next.end()
            self._next = None
        if discovery is None or self._is_chosen(discovery):
            return
        assert self._group is not None, "a discovery is prepared while others run"  # noqa: S101
        run = _Run(self._store, discovery, is_held=True)
        run.start(self._group)
        try:
            async with asyncio.timeout(FIRST_REPORT_SECONDS):
                await run.begun.wait()
            if run.fault is None:
                self._next = run
        except TimeoutError:
            run.fault = TimeoutError(f"no report within {FIRST_REPORT_SECONDS:.0f} s")
        finally:
            if self._next is not run:
                run.end()
        if run.fault is not None:
            # A KeyError's text, without its class, says nothing.
            known = isinstance(run.fault, DataLayerError | TimeoutError)
            text = str(run.fault) if known else f"{type(run.fault).__name__}: {run.fault}"
            raise DiscoveryError(f"discovery {discovery.name!r}: {text}") from run.fault

    def use(self, discovery: EndpointDiscovery | None) -> None:
        """Replace the current discovery with ``discovery``, which must have been prepared.

        Raises:
            DuplicateEndpointError: A fixed discovery has one of its endpoints; nothing has changed.
        """
        if discovery is not None and self._is_chosen(discovery):
            return
        before, following = self._chosen, self._next
        self._next = None
        if following is not None:
            try:
                following.release(before)
            except DuplicateEndpointError:
                following.end()
                raise
        self._chosen = following
        if before is not None:
            before.end()
            if following is None:
                self._store.replace_sources({}, instead_of=before.sources)

    def _is_chosen(self, discovery: EndpointDiscovery) -> bool:
        return self._chosen is not None and self._chosen.discovery is discovery
