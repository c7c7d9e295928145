"""Finds the pool of a request, where one endpoint picker serves several.

The first of these that names a pool decides:

1. the gateway's gRPC metadata ``x-gateway-inference-pool``, for all requests of its route;
2. the ``:authority`` of the gateway's stream, if it is a Service that exactly one pool names as its
   endpoint picker: gateways put it there from the pool's ``endpointPickerRef``;
3. the request's header ``x-gateway-inference-pool``;
4. the host of the request, if a pool claims it.

The first two are known when the stream opens and cost nothing for a request. If the first or the
third names a pool that is not served, the request ends with an error.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from epp.ext_proc.gateway_metadata import POOL
from epp.ext_proc.interfaces import RequestHandler
from epp.request_control import (
    UNCOUNTED,
    EndCause,
    NoPoolMatchesError,
    PendingDecision,
    PoolNotServedError,
    Refusals,
    RequestError,
    RequestMemory,
    RoutedRequest,
)
from epp.tracing import RequestTrace

_log = structlog.get_logger(__name__)

_AUTHORITY: Final = ":authority"
_MAX_AUTHORITIES: Final = 256
"""How many authorities of gateways are remembered."""


class MatchedPool(NamedTuple):
    """A pool, and what names it."""

    name: str
    handler: RequestHandler
    service: str = ""
    """Name of the Service that its gateways call; "" if it is not known."""
    hosts: Collection[str] = ()
    """Hosts of its requests, in lower case, without port; ``*.DOMAIN`` for all below a domain."""


class PoolMatcher:
    """Chooses the handler of a stream, or of each of its requests.

    Args:
        namespace: Namespace of all pools and of their Services.
        refusals: Counts and logs requests for which there is no pool.
    """

    def __init__(self, namespace: str, refusals: Refusals) -> None:
        self._namespace = namespace
        self._refusals = refusals
        self._by_name: Mapping[str, RequestHandler] = {}
        self._by_service: Mapping[str, RequestHandler] = {}
        self._by_host: Mapping[str, RequestHandler] = {}
        self._authorities: dict[str, RequestHandler] = {}
        self._by_request = _HandlerOfRequest(self._of_request, refusals)
        self._ambiguous: Set[tuple[str, str]] = frozenset()

    def use(self, pools: Iterable[MatchedPool]) -> None:
        """Match these pools from now on."""
        pools = list(pools)
        self._by_name = {pool.name: pool.handler for pool in pools}
        self._by_service, shared_services = _unambiguous(
            (pool.service, pool) for pool in pools if pool.service
        )
        self._by_host, shared_hosts = _unambiguous(
            (host, pool) for pool in pools for host in pool.hosts
        )
        self._authorities.clear()
        shared = {("Service", name): owners for name, owners in shared_services.items()}
        shared |= {("host", name): owners for name, owners in shared_hosts.items()}
        for kind, name in sorted(shared.keys() - self._ambiguous):
            _log.warning(
                "several pools share a name, so it selects none of them",
                kind=kind,
                name=name,
                pools=shared[kind, name],
            )
        self._ambiguous = shared.keys()

    def of_stream(self, headers: Mapping[str, str]) -> RequestHandler:
        named = headers.get(POOL)
        if named is not None:
            return _HandlerOfRequest(lambda _: self._named(named), self._refusals)
        authority = headers.get(_AUTHORITY, "")
        handler = self._authorities.get(authority)
        if handler is None:
            handler = self._by_service.get(self._service(authority), self._by_request)
            if len(self._authorities) >= _MAX_AUTHORITIES:
                self._authorities.clear()
            self._authorities[authority] = handler
        return handler

    def _service(self, authority: str) -> str:
        """Return the name of a Service of this namespace; "" if ``authority`` is not one.

        Gateways send ``NAME.NAMESPACE.svc:PORT``, or the name of Envoy's cluster, at the end of
        which Istio has the host: ``outbound|PORT||NAME.NAMESPACE.svc.cluster.local``.
        """
        host = _without_port(authority.rpartition("|")[2])
        name, _, domain = host.partition(".")
        namespace = domain.partition(".")[0]
        return name if namespace in {"", self._namespace} else ""

    def _named(self, name: str) -> RequestHandler:
        namespace, slash, local = name.rpartition("/")
        handler = None
        if not slash or namespace == self._namespace:
            handler = self._by_name.get(local)
        if handler is None:
            raise PoolNotServedError(f"this endpoint picker does not serve the pool {name[:253]}")
        return handler

    def _of_request(self, headers: Mapping[str, str]) -> RequestHandler:
        named = headers.get(POOL)
        if named is not None:
            return self._named(named)
        host = _without_port(headers.get(_AUTHORITY, ""))
        by_host = self._by_host
        handler = by_host.get(host)
        while handler is None and "." in host:
            host = host.partition(".")[2]
            handler = by_host.get(f"*.{host}")
        if handler is None:
            raise NoPoolMatchesError(
                "no pool matches: the gateway names none in its gRPC metadata or by a Service, and"
                f" the request has neither the header {POOL} nor the host of a pool"
            )
        return handler


class _HandlerOfRequest:
    """Passes each request to the handler that its headers select.

    Args:
        select: Returns the handler for a request's headers, or raises a RequestError.
        refusals: Counts and logs these errors.
    """

    __slots__ = ("_refusals", "_select")

    def __init__(
        self, select: Callable[[Mapping[str, str]], RequestHandler], refusals: Refusals
    ) -> None:
        self._select = select
        self._refusals = refusals

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        received_at: float,
        subset: Sequence[str] | None = None,
        memory: RequestMemory = UNCOUNTED,
        trace: RequestTrace | None = None,
    ) -> RoutedRequest | PendingDecision:
        try:
            handler = self._select(headers)
        except RequestError as error:
            self._refusals.refused(
                error,
                request_id=request_id,
                request=None,
                headers=headers,
                received_at=received_at,
                trace=trace,
            )
            raise
        return handler.handle(
            request_id=request_id,
            headers=headers,
            body=body,
            received_at=received_at,
            subset=subset,
            memory=memory,
            trace=trace,
        )

    def ended_early(
        self,
        why: RequestError | EndCause,
        *,
        request_id: str,
        headers: Mapping[str, str],
        received_at: float,
    ) -> None:
        with suppress(RequestError):  # no pool matches
            self._select(headers).ended_early(
                why, request_id=request_id, headers=headers, received_at=received_at
            )

    def priority_of(self, headers: Mapping[str, str]) -> int:
        try:
            return self._select(headers).priority_of(headers)
        except RequestError:
            return 0


def _without_port(authority: str) -> str:
    host, colon, port = authority.rpartition(":")
    return (host if colon and port.isdecimal() else authority).lower()


def _unambiguous(
    named: Iterable[tuple[str, MatchedPool]],
) -> tuple[Mapping[str, RequestHandler], Mapping[str, Sequence[str]]]:
    """Return the handlers of names that one pool has, and the pools of names that several have."""
    owners: dict[str, dict[str, RequestHandler]] = {}
    for name, pool in named:
        owners.setdefault(name, {})[pool.name] = pool.handler
    handlers = {name: next(iter(of.values())) for name, of in owners.items() if len(of) == 1}
    shared = {name: sorted(of) for name, of in owners.items() if len(of) > 1}
    return handlers, shared
