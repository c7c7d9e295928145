"""The running discoveries of a pool, of which a reload may put one in another's place.

A new discovery is started beside the old one, and what it first finds is held back until the whole
configuration is taken into use. Then its endpoints take the place of the old one's in one step, so
that the pool is never empty in between, and servers that both know keep their metrics and load.
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
"""How long a new discovery may take to find out what there is, before the reload is given up."""


class _Run:
    """One running discovery: its task, and its way into the store (an ``EndpointSink``).

    Args:
        store: The pool.
        discovery: What runs.
        is_held: Keep what it finds until :meth:`release`; if it fails before it has found
            anything, the fault is kept, too, instead of being raised.
    """

    def __init__(
        self, store: EndpointStore, discovery: EndpointDiscovery, *, is_held: bool
    ) -> None:
        self.discovery = discovery
        self.begun = asyncio.Event()
        """Set by the first report, and by a fault before it."""
        self.fault: Exception | None = None
        self.sources: set[str] = set()
        """Names under which the store knows its endpoints."""
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
        """Let what was held back, and all that follows, into the store.

        Raises:
            DuplicateEndpointError: A third discovery has an endpoint of the same name; nothing has
                changed then.
        """
        held, self._held = self._held or {}, None
        replaced = set() if instead_of is None else instead_of.sources
        self._store.replace_sources(held, instead_of=replaced)
        self.sources.update(held)

    def end(self) -> None:
        """Stop it; its endpoints stay."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()


class Discoveries:
    """Runs discoveries that report to one store.

    Args:
        store: The pool.
        fixed: Discoveries that run as long as the process.
        chosen: The one that the configuration names, which a reload may change.
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
        """Run all of them until cancelled.

        Raises:
            ExceptionGroup: One of the first ones failed before its first report.
        """
        async with asyncio.TaskGroup() as group:
            self._group = group
            for run in (*self._fixed, *([] if self._chosen is None else [self._chosen])):
                run.start(group)
            await asyncio.Event().wait()

    async def prepare(self, discovery: EndpointDiscovery | None) -> None:
        """Start ``discovery``, unless it runs, and wait until it has found something out.

        Raises:
            DiscoveryError: It failed, or took longer than ``FIRST_REPORT_SECONDS``.
        """
        if self._next is not None:  # of a reload that was given up
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
        """Put ``discovery``, which has been prepared, in the place of the present one.

        Raises:
            DuplicateEndpointError: It knows an endpoint of a fixed discovery; nothing has changed.
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
