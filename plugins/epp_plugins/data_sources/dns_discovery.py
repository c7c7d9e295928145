"""``dns-discovery``: follows the addresses of DNS names, such as those of headless Services.

It needs no access to the Kubernetes API. A name is looked up in one of two ways:

- With ``ports``: A and AAAA records. Each port of each address is an endpoint; several ports are
  the data-parallel ranks of a server.
- A name like ``_service._proto.name``, or any with ``records: srv``: SRV records, which give hosts
  and ports. Their priority and weight are ignored, because endpoints are chosen by load.

Name servers, search domains and ``ndots`` are those of ``/etc/resolv.conf``, which is read at each
lookup; ``/etc/hosts`` is not used. A name that ends with a dot is looked up without search domains,
which saves a query per domain. Truncated responses are requested again over TCP. Responses are not
authenticated (no DNSSEC), so use name servers that you trust.

A name is looked up again when its TTL has expired, but not before ``minRefreshSeconds`` and not
later than ``maxRefreshSeconds``. Up to a tenth is added at random, so that replicas do not look it
up at the same time.

If a lookup fails (timeout, SERVFAIL, REFUSED), the endpoints of the name stay. The next lookup is
after ``minRefreshSeconds``, and after twice as long with each further failure, up to
``maxRefreshSeconds``. If the response says that the name does not exist (NXDOMAIN) or has no
records, as for a Service without ready pods, it is looked up every ``minRefreshSeconds``, and its
endpoints leave the pool once all lookups for ``emptyAfterSeconds`` have had such a response. At the
start such a response counts at once.

The first report is made when each name has had a response. Until then the endpoint picker is not
ready, unless it has other endpoints, and a reload fails after 10 seconds. The log has one line when
lookups of a name begin to fail, one when it loses its last endpoint, and one when either is over.

An endpoint is called ``default/ip:port``. It keeps its metrics and load while any of the names has
it, also when a reload changes the names. If several have it, the labels of the first one count.

The plugin needs dnspython: ``pip install 'endpoint-picker[dns]'``. The image has it.

Example::

    plugins:
      - type: dns-discovery
        parameters:
          names:
          - hostname: vllm-decode.llm.svc.cluster.local.
            ports: [8000]
            labels: {llm-d.ai/role: decode}
          - hostname: _http._tcp.vllm-prefill.llm.svc.cluster.local.
            labels: {llm-d.ai/role: prefill}
    dataLayer:
      discovery: {pluginRef: dns-discovery}
"""

import asyncio
import concurrent.futures
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from epp.data_layer.plugins import (
    DuplicateEndpointError,
    EndpointDiscovery,
    EndpointSink,
    EndpointSpec,
)
from epp_plugins.data_sources.dns_params import DnsName, Params

if TYPE_CHECKING:  # the module imports dnspython, which is optional and takes 0.1 s to import
    from epp_plugins.data_sources.dns_lookup import LookupResult

_log = structlog.get_logger(__name__)


LookUp = Callable[[DnsName], Awaitable["LookupResult"]]
"""Looks a name up; raises any exception on failure."""

_DUMPED_NAMES: Final = 50


class DnsDiscovery(EndpointDiscovery):
    """Reports the addresses of DNS names.

    Args:
        name: Name of the instance.
        params: Its parameters.
        rng: Spreads the lookups.
        clock: Measures how long responses are empty.
        look_up: Looks names up; default: with dnspython.

    Raises:
        ValueError: dnspython is not installed.
    """

    type: ClassVar[str] = "dns-discovery"

    def __init__(
        self,
        name: str,
        params: Params,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        look_up: LookUp | None = None,
    ) -> None:
        # Only checked here: a reload creates plugins on the event loop, so the lookup thread
        # imports it.
        if look_up is None and find_spec("dns") is None:
            raise ValueError(
                "the package dnspython is not installed: pip install 'endpoint-picker[dns]'"
            )
        self.name = name
        self.params = params
        self._rng = rng or random.Random()  # noqa: S311 - no secrets
        self._clock = clock
        self._look_up = look_up or self._look_up_in_thread
        self._names: list[_FollowedName] = []
        self._reported: list[EndpointSpec] | None = None
        self._conflict: str | None = None

    async def run(self, sink: EndpointSink) -> None:
        self._reported = self._conflict = None
        self._names = [_FollowedName(each, self.params) for each in self.params.names]
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in self._names:
                    tasks.create_task(self._follow(each, sink), name=f"dns-{each.dns.hostname}")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def dump_state(self) -> Mapping[str, object]:
        names = {each.dns.hostname: each for each in self._names[:_DUMPED_NAMES]}
        return {
            "names": len(self._names),
            "endpoints": len(self._reported or ()),
            "conflict": self._conflict or "",
            "by_name": {name: each.state() for name, each in names.items()},
        }

    async def _follow(self, name: "_FollowedName", sink: EndpointSink) -> None:
        while True:
            try:
                found = await self._look_up(name.dns)
            except Exception as error:
                # No error, not even a bug in the library, may end the discovery.
                name.fail(error)
            else:
                name.take(found, self._clock())
                self._report(sink)
            await asyncio.sleep(name.refresh_seconds * self._rng.uniform(1.0, 1.1))

    def _report(self, sink: EndpointSink) -> None:
        """Report the endpoints of all names if they have changed and each name has had a response.

        Raises:
            DuplicateEndpointError: Another source has one of them, and this is the first report.
        """
        specs: dict[str, EndpointSpec] = {}
        for name in self._names:
            if name.addresses is None:
                return
            for address in name.addresses:
                spec = EndpointSpec(f"default/{address}", address, name.dns.labels)
                specs.setdefault(spec.name, spec)
        wanted = list(specs.values())
        if wanted == self._reported:
            return
        try:
            sink.replace_endpoints(self.name, wanted)
        except DuplicateEndpointError as error:
            if self._reported is None:
                raise
            if str(error) != self._conflict:
                self._conflict = str(error)
                _log.warning("DNS endpoints refused, last good endpoints kept", error=str(error))
        else:
            self._reported, self._conflict = wanted, None

    async def _look_up_in_thread(self, name: DnsName) -> "LookupResult":
        params = self.params

        def look_up() -> "LookupResult":
            from epp_plugins.data_sources import dns_lookup  # noqa: PLC0415 - see above

            return dns_lookup.look_up(
                name.hostname,
                name.ports,
                ip_families=params.ip_families,
                nameservers=params.servers(),
            )

        return await _in_daemon_thread(look_up, f"dns-{name.hostname}")


class _FollowedName:
    """The state of one name.

    Attributes:
        dns: The name.
        addresses: Its last known addresses; None before the first response.
        refresh_seconds: Time from the last lookup to the next one.
    """

    def __init__(self, name: DnsName, params: Params) -> None:
        self.dns = name
        self.addresses: Sequence[str] | None = None
        self.refresh_seconds = 0.0
        self.params = params
        self._failures = 0
        """Failures in a row."""
        self._empty_since: float | None = None

    def state(self) -> Mapping[str, object]:
        """Return the state of the name, for the dump."""
        return {
            "addresses": None if self.addresses is None else len(self.addresses),
            "failures_in_a_row": self._failures,
            "refresh_seconds": self.refresh_seconds,
        }

    def fail(self, error: Exception) -> None:
        """Record a failed lookup."""
        if not self._failures:
            _log.warning(
                "DNS lookup failed, last endpoints kept",
                hostname=self.dns.hostname,
                endpoints=len(self.addresses or ()),
                error=str(error) or type(error).__name__,
            )
        self._empty_since = None
        self.refresh_seconds = self._bounded(
            self.params.min_refresh_seconds * 2.0 ** min(self._failures, 32)
        )
        self._failures += 1

    def take(self, found: "LookupResult", now: float) -> None:
        """Record the response of a lookup."""
        if self._failures:
            self._failures = 0
            _log.info("DNS lookup recovered", hostname=self.dns.hostname)
        if found.addresses:
            if self.addresses == ():
                _log.info(
                    "DNS name has addresses again",
                    hostname=self.dns.hostname,
                    endpoints=len(found.addresses),
                )
            self._empty_since = None
            self.addresses = found.addresses
        elif self._is_empty_at(now):
            if self.addresses != ():
                _log.warning(
                    "DNS name has no addresses", hostname=self.dns.hostname, reason=found.why_empty
                )
            self.addresses = ()
        is_settled = found.addresses == self.addresses
        self.refresh_seconds = self._bounded(found.ttl_seconds if is_settled else 0.0)

    def _is_empty_at(self, now: float) -> bool:
        """Return whether an empty response at ``now`` means that there are no endpoints."""
        if not self.addresses:
            return True
        if self._empty_since is None:
            self._empty_since = now
        return now - self._empty_since >= self.params.empty_after_seconds

    def _bounded(self, seconds: float) -> float:
        params = self.params
        return min(max(seconds, params.min_refresh_seconds), params.max_refresh_seconds)


async def _in_daemon_thread(call: "Callable[[], LookupResult]", name: str) -> "LookupResult":
    """Run ``call`` in a daemon thread of its own, which does not prevent the process from exiting.

    A lookup without a response takes 8 s: in the default thread pool it would delay others.
    """
    future: concurrent.futures.Future[LookupResult] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # a cancelled caller leaves the result unread

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)
