"""The pool: every endpoint that some discovery has reported, as one shared snapshot.

Discoveries report what they know by source name, the store keeps what did not change and tells its
listeners what came, changed and went. Requests read ``snapshot``: a tuple made only when something
changed, so a request costs no copy and can hold it for as long as it likes. Everything runs on the
event loop; nothing here waits.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import structlog

from epp.data_layer.errors import DuplicateEndpointError
from epp.data_layer.plugins import EndpointListener, EndpointSpec
from epp.scheduling import Endpoint, Plugin

_log = structlog.get_logger(__name__)


class PoolListener(Protocol):
    """Hears of endpoints that come and go.

    Every ``EndpointListener`` plugin is one; those hear of changed labels too.
    """

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """``endpoint`` is in the pool from now on."""

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """``endpoint`` has left the pool; requests in flight there may still end."""


class EndpointStore:
    """All endpoints of the pool, from any number of discoveries; implements ``EndpointSink``."""

    __slots__ = ("_by_address", "_listeners", "_sources", "reported", "snapshot", "version")

    def __init__(self) -> None:
        self.snapshot: tuple[Endpoint, ...] = ()
        """The pool now, sorted by name; another tuple object after every change."""
        self.version = 0
        """Number of changes so far: endpoints that came or went, or labels."""
        self.reported = asyncio.Event()
        """Set by the first successful report of a discovery (an empty one counts)."""
        self._sources: dict[str, dict[str, Endpoint]] = {}
        self._by_address: dict[str, Endpoint] = {}
        self._listeners: list[PoolListener] = []

    @property
    def synced(self) -> bool:
        """Whether a discovery has reported."""
        return self.reported.is_set()

    def find_address(self, address: str) -> Endpoint | None:
        """Return the endpoint at ``ip:port`` (the first by name), None if the pool has none."""
        return self._by_address.get(address)

    def add_listener(self, listener: PoolListener, *, tells_present: bool = True) -> None:
        """Tell ``listener`` of all endpoints there are, then of every change.

        Args:
            listener: Who is told.
            tells_present: Whether it is told of those that are there already.
        """
        self._listeners.append(listener)
        if tells_present:
            for endpoint in self.snapshot:
                _tell(listener, "added", endpoint)

    def remove_listener(self, listener: PoolListener) -> None:
        """Tell ``listener`` nothing more; it must have been added."""
        self._listeners.remove(listener)

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        """Make ``specs`` the whole of what ``source`` knows; what is unchanged stays as it is.

        The same name and address keep their Endpoint object, and with it metrics and load. Another
        address under the same name is another server: the old endpoint leaves, a new one comes.

        Raises:
            DuplicateEndpointError: Two specs, or another source's, have the same name; nothing
                has changed then.
        """
        self.replace_sources({source: specs})

    def replace_sources(
        self, reports: Mapping[str, Iterable[EndpointSpec]], *, instead_of: Collection[str] = ()
    ) -> None:
        """Take the reports of several sources in one step, each as :meth:`replace_endpoints` does.

        Args:
            reports: All endpoints that each source knows, by its name.
            instead_of: Sources whose place they take: those know nothing any more, and what they
                have in common with ``reports`` stays as it is.

        Raises:
            DuplicateEndpointError: Two specs, or another source's, have the same name; nothing
                has changed then.
        """
        replaced = {*reports, *instead_of}
        wanted = self._by_unique_name(reports, replaced)
        before = {
            name: endpoint
            for known in replaced
            for name, endpoint in self._sources.get(known, {}).items()
        }
        after: dict[str, dict[str, Endpoint]] = {source: {} for source in reports}
        added: list[Endpoint] = []
        changed: list[Endpoint] = []
        for name, (source, spec) in wanted.items():
            endpoint = before.get(name)
            if endpoint is None or endpoint.address != spec.address:
                endpoint = Endpoint(name, spec.address, dict(spec.labels))
                added.append(endpoint)
            else:
                del before[name]
                if endpoint.labels != spec.labels:
                    endpoint.labels = dict(spec.labels)
                    changed.append(endpoint)
            after[source][name] = endpoint
        removed = list(before.values())
        for known in replaced:
            self._sources.pop(known, None)
        self._sources.update(after)
        self.reported.set()
        if added or changed or removed:
            self._publish()
            self._announce(added, changed, removed)

    def _by_unique_name(
        self, reports: Mapping[str, Iterable[EndpointSpec]], replaced: Collection[str]
    ) -> dict[str, tuple[str, EndpointSpec]]:
        """Return the specs of all reports, each with its source."""
        held_by = {
            name: other
            for other, endpoints in self._sources.items()
            if other not in replaced
            for name in endpoints
        }
        wanted: dict[str, tuple[str, EndpointSpec]] = {}
        for source, specs in reports.items():
            for spec in specs:
                if spec.name in held_by:
                    raise DuplicateEndpointError(spec.name, held_by[spec.name], source)
                held_by[spec.name] = source
                wanted[spec.name] = source, spec
        return wanted

    def _publish(self) -> None:
        endpoints = [e for known in self._sources.values() for e in known.values()]
        endpoints.sort(key=lambda endpoint: endpoint.name)
        self.snapshot = tuple(endpoints)
        self._by_address = {e.address: e for e in reversed(endpoints)}
        self.version += 1

    def _announce(
        self, added: list[Endpoint], changed: list[Endpoint], removed: list[Endpoint]
    ) -> None:
        # Removed first: a listener that keeps endpoints by name must not drop the new incarnation.
        for listener in tuple(self._listeners):
            for endpoint in removed:
                _tell(listener, "removed", endpoint)
            for endpoint in changed:
                _tell(listener, "changed", endpoint)
            for endpoint in added:
                _tell(listener, "added", endpoint)
        for endpoint in removed:
            _log.info("endpoint left the pool", endpoint=endpoint.name, address=endpoint.address)
        for endpoint in added:
            _log.info("endpoint joined the pool", endpoint=endpoint.name, address=endpoint.address)


def _tell(listener: PoolListener, event: str, endpoint: Endpoint) -> None:
    try:
        if event == "added":
            listener.endpoint_added(endpoint)
        elif event == "changed":
            if isinstance(listener, EndpointListener):
                listener.endpoint_changed(endpoint)
        else:
            listener.endpoint_removed(endpoint)
    except Exception:
        # A listener may be anyone's plugin: its bug must not keep the others, the scraper among
        # them, from hearing of the endpoint, nor end the discovery.
        _log.exception(
            "endpoint listener failed",
            listener=listener.name if isinstance(listener, Plugin) else type(listener).__name__,
            change=event,
            endpoint=endpoint.name,
        )
