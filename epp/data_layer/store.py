"""The pool: all endpoints that the discoveries have reported, as one shared snapshot.

Each discovery reports its complete list under a source name. The store keeps unchanged endpoints
and notifies its listeners of added, changed and removed ones. Requests read ``snapshot``, an
immutable tuple that is rebuilt only on changes, so a request copies nothing and may hold it for as
long as it runs. Everything runs on the event loop; nothing here waits.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog

from epp.data_layer.draining import DrainMarks
from epp.data_layer.errors import DuplicateEndpointError
from epp.data_layer.plugins import EndpointListener, EndpointSpec
from epp.data_layer.shared_labels import share_labels
from epp.observability import DebugLine
from epp.scheduling import Endpoint, EndpointLoad, Plugin

_log = structlog.get_logger(__name__)
_reported: Final = DebugLine("endpoints reported", logger=__name__)

_NAMES: Final = 5
"""How many endpoints a log line names."""

_Identity = tuple[str, str, str]
"""Name, address and incarnation; equal identities are the same server."""


class PoolListener(Protocol):
    """Is notified when endpoints join and leave the pool.

    Every ``EndpointListener`` plugin is one; it is also notified of changed labels.
    """

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """``endpoint`` has joined the pool."""

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """``endpoint`` has left the pool; requests in flight there may still end."""


class EndpointStore:
    """All endpoints of the pool, from any number of discoveries; implements ``EndpointSink``."""

    __slots__ = (
        "_by_address",
        "_departed",
        "_listeners",
        "_log_fields",
        "_make_load",
        "_serving_changed",
        "_sources",
        "drains",
        "reported",
        "serving",
        "snapshot",
        "version",
    )

    def __init__(
        self,
        drains: DrainMarks | None = None,
        *,
        serving_changed: Callable[[], None] = lambda: None,
        log_fields: Mapping[str, str] = MappingProxyType({}),
        make_load: Callable[[EndpointSpec], EndpointLoad] = lambda _: EndpointLoad(),
    ) -> None:
        """Begin with an empty pool.

        Args:
            drains: Says which endpoints get no new requests; None if all do.
            serving_changed: Called after endpoints have started or stopped draining.
            log_fields: Fields of the log lines of endpoints that join or leave.
            make_load: Makes the load of a new endpoint.
        """
        self.snapshot: tuple[Endpoint, ...] = ()
        """All endpoints, sorted by name; a new tuple after every change."""
        self.serving: tuple[Endpoint, ...] = ()
        """The endpoints that are not draining."""
        self.drains = drains or DrainMarks()
        """Says which endpoints are draining, and why."""
        self._serving_changed = serving_changed
        self._log_fields = log_fields
        self._make_load = make_load
        self.version = 0
        """Number of changes so far: of the set of endpoints or of their labels."""
        self.reported = asyncio.Event()
        """Set by the first successful report of a discovery, even an empty one."""
        self._sources: dict[str, dict[str, Endpoint]] = {}
        self._by_address: dict[str, Endpoint] = {}
        self._listeners: list[PoolListener] = []
        self._departed: WeakValueDictionary[_Identity, Endpoint] = WeakValueDictionary()
        """Endpoints that have left the pool and that something still refers to."""

    @property
    def synced(self) -> bool:
        """Whether a discovery has reported."""
        return self.reported.is_set()

    def find_address(self, address: str) -> Endpoint | None:
        """Return the endpoint at ``ip:port`` (the first by name), None if the pool has none."""
        return self._by_address.get(address)

    def update_serving(self) -> None:
        """Apply :attr:`drains` to the pool; call it after each change there."""
        has_changed = [self.drains.note(endpoint) for endpoint in self.snapshot]
        self.serving = tuple(each for each in self.snapshot if not each.is_draining)
        if any(has_changed):
            self._serving_changed()

    def why_none_serves(self) -> str:
        """Return why no endpoint of the pool takes new requests; "" if the pool is empty."""
        if not self.snapshot:
            return ""
        count = len(self.snapshot)
        which = "the only endpoint" if count == 1 else f"all {count} endpoints"
        verb = "is" if count == 1 else "are"
        return f"{which} of the pool {verb} draining; {self.drains.remedy(self.snapshot)}"

    def add_listener(self, listener: PoolListener, *, notify_present: bool = True) -> None:
        """Notify ``listener`` of every change from now on.

        Args:
            listener: The listener.
            notify_present: Whether to notify it of the current endpoints first.
        """
        self._listeners.append(listener)
        if notify_present:
            for endpoint in self.snapshot:
                _notify(listener, "added", endpoint)

    def remove_listener(self, listener: PoolListener) -> None:
        """Stop notifying ``listener``, which must have been added."""
        self._listeners.remove(listener)

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        """Replace all endpoints of ``source`` with ``specs``.

        A spec with the name, address and incarnation of an existing endpoint keeps the Endpoint
        object, with its metrics and load. So does a spec that returns while earlier requests to the
        endpoint are in flight. A new address or incarnation under an existing name is a different
        server: the old endpoint is removed and a new one added. If the incarnation is the same, the
        new one begins with the old one's metrics.

        Raises:
            DuplicateEndpointError: Two specs have the same name, or another source has an endpoint
                of that name; nothing has changed.
        """
        self.replace_sources({source: specs})

    def replace_sources(
        self, reports: Mapping[str, Iterable[EndpointSpec]], *, instead_of: Collection[str] = ()
    ) -> None:
        """Replace the endpoints of several sources in one step, see :meth:`replace_endpoints`.

        Args:
            reports: The complete list of each source, by source name.
            instead_of: Sources that ``reports`` replace. They lose all endpoints; those that are
                also in ``reports`` keep their Endpoint object.

        Raises:
            DuplicateEndpointError: Two specs have the same name, or another source has an endpoint
                of that name; nothing has changed.
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
            if endpoint is None or _identity(endpoint) != _identity(spec):
                endpoint = self._join(spec, endpoint)
                added.append(endpoint)
            else:
                del before[name]
                labels = endpoint.labels
                if labels is not spec.labels and labels != spec.labels:
                    endpoint.labels = share_labels(spec.labels)
                    changed.append(endpoint)
            after[source][name] = endpoint
        removed = list(before.values())
        self._departed.update((_identity(endpoint), endpoint) for endpoint in removed)
        for known in replaced:
            self._sources.pop(known, None)
        self._sources.update(after)
        self.reported.set()
        if _reported.enabled:
            _reported.write(self._facts, after, added, changed, removed)
        if added or changed or removed:
            self._publish()
            self._announce(added, changed, removed)

    def _facts(
        self,
        after: Mapping[str, Mapping[str, Endpoint]],
        added: Sequence[Endpoint],
        changed: Sequence[Endpoint],
        removed: Sequence[Endpoint],
    ) -> dict[str, object]:
        return {
            "endpoints": {source: len(endpoints) for source, endpoints in after.items()},
            "added": len(added),
            "changed": [endpoint.name for endpoint in changed[:_NAMES]],
            "removed": len(removed),
            **self._log_fields,
        }

    def _join(self, spec: EndpointSpec, former: Endpoint | None) -> Endpoint:
        """Return the endpoint of a server that joins the pool; ``former`` had its name."""
        departed = self._departed.get(_identity(spec))
        if departed is not None and departed.load.in_flight:
            departed.labels = share_labels(spec.labels)
            return departed
        joined = Endpoint(
            spec.name,
            spec.address,
            share_labels(spec.labels),
            load=self._make_load(spec),
            incarnation=spec.incarnation,
            node_address=spec.node_address,
        )
        if former is not None and spec.incarnation and spec.incarnation == former.incarnation:
            joined.metrics = former.metrics
            joined.attributes = dict(former.attributes)
        return joined

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
        self.update_serving()

    def _announce(
        self, added: list[Endpoint], changed: list[Endpoint], removed: list[Endpoint]
    ) -> None:
        # Removed first: a listener that keys endpoints by name must not drop a new one that
        # reuses the name.
        for listener in tuple(self._listeners):
            for endpoint in removed:
                _notify(listener, "removed", endpoint)
            for endpoint in changed:
                _notify(listener, "changed", endpoint)
            for endpoint in added:
                _notify(listener, "added", endpoint)
        for event, endpoints in (
            ("endpoint left the pool", removed),
            ("endpoint joined the pool", added),
        ):
            for endpoint in endpoints:
                _log.info(
                    event, **self._log_fields, endpoint=endpoint.name, address=endpoint.address
                )


def _identity(server: Endpoint | EndpointSpec) -> _Identity:
    return server.name, server.address, server.incarnation


def _notify(listener: PoolListener, event: str, endpoint: Endpoint) -> None:
    try:
        if event == "added":
            listener.endpoint_added(endpoint)
        elif event == "changed":
            if isinstance(listener, EndpointListener):
                listener.endpoint_changed(endpoint)
        else:
            listener.endpoint_removed(endpoint)
    except Exception:
        # A listener may be a third-party plugin: its bug must neither stop the discovery nor keep
        # other listeners, such as the scraper, from being notified.
        _log.exception(
            "endpoint listener failed",
            listener=listener.name if isinstance(listener, Plugin) else type(listener).__name__,
            change=event,
            endpoint=endpoint.name,
        )
