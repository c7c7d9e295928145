"""Looks up addresses and a TTL of a name with dnspython, for :mod:`.dns_discovery`.

:func:`look_up` blocks. It reads the resolver's configuration anew each time and follows its name
servers, search domains and ``ndots``. A truncated response is requested again over TCP.

dnspython is optional: only the thread that looks up imports this module.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dns.message
import dns.name
import dns.nameserver
import dns.rdataclass
import dns.rdatatype
import dns.resolver
import dns.rrset

from epp.data_layer.plugins import join_address

ATTEMPT_SECONDS: Final = 1.0
"""Time limit of one name server, because the next server or attempt may be faster. While the first
server is down, each of the four search domains of a pod costs this much."""
LOOKUP_SECONDS: Final = 8.0
"""Time limit of all queries of one lookup together. A reload waits longer than this for a
discovery, so that the log has the cause."""

_UDP_BYTES: Final = 1232
"""Largest response over UDP that is not fragmented (DNS flag day 2020)."""
_TYPES: Final = {"IPv4": dns.rdatatype.A, "IPv6": dns.rdatatype.AAAA}


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The result of one lookup."""

    addresses: tuple[str, ...]
    """``ip:port``, each once, sorted by host; the ports of a host in the given order."""
    ttl_seconds: float
    """Time for which it may be cached, even if there are no addresses."""
    why_empty: str = ""
    """Why there are no addresses; "" if there are some."""


def look_up(
    hostname: str,
    ports: Sequence[int],
    *,
    ip_families: Sequence[str] = ("IPv4", "IPv6"),
    nameservers: Sequence[tuple[str, int]] = (),
    resolv_conf: Path = Path("/etc/resolv.conf"),
) -> LookupResult:
    """Look up the addresses of a name.

    Args:
        hostname: Absolute if it ends with a dot; otherwise the search domains apply.
        ports: Ports of each address. Without any, SRV records give servers and ports.
        ip_families: ``IPv4`` and ``IPv6``; the first one of which a host has addresses is used.
        nameservers: Address and port of the servers to ask, instead of those in ``resolv_conf``.
        resolv_conf: File with name servers, search domains and options.

    Raises:
        DNSException: No server gave a valid response, or none is known.
    """
    lookup = _Lookup(_resolver(nameservers, resolv_conf), [_TYPES[each] for each in ip_families])
    if ports:
        found = [(host, port) for host in sorted(lookup.hosts(hostname)) for port in ports]
    else:
        found = sorted(lookup.servers(hostname))
    addresses = tuple(join_address(host, port) for host, port in found)
    return LookupResult(addresses, lookup.ttl_seconds, "" if addresses else lookup.why_empty)


def _resolver(nameservers: Sequence[tuple[str, int]], resolv_conf: Path) -> dns.resolver.Resolver:
    resolver = dns.resolver.Resolver(configure=False)
    try:
        resolver.read_resolv_conf(str(resolv_conf))
    except dns.resolver.NoResolverConfiguration:
        if not nameservers:
            raise
    if nameservers:
        resolver.nameservers = [dns.nameserver.Do53Nameserver(*each) for each in nameservers]
    resolver.timeout = ATTEMPT_SECONDS
    resolver.use_edns(0, payload=_UDP_BYTES)
    return resolver


class _Lookup:
    """The queries of one lookup.

    Attributes:
        ttl_seconds: The shortest TTL of all responses so far.
        why_empty: Text about the last response without records.
    """

    def __init__(
        self, resolver: dns.resolver.Resolver, types: Sequence[dns.rdatatype.RdataType]
    ) -> None:
        self.ttl_seconds = math.inf
        self.why_empty = ""
        self._resolver = resolver
        self._types = types
        self._deadline = time.monotonic() + LOOKUP_SECONDS

    def hosts(self, name: str | dns.name.Name) -> set[str]:
        """Return the IP addresses of a host."""
        for kind in self._types:
            if hosts := _hosts(self._records(name, kind)[0]):
                return hosts
        return set()

    def servers(self, name: str) -> set[tuple[str, int]]:
        """Return the IP addresses and ports of the servers in SRV records."""
        records, response = self._records(name, dns.rdatatype.SRV)
        servers = set[tuple[str, int]]()
        for record in records or ():
            if record.target == dns.name.root:
                self.why_empty = f"the SRV record of {name} says that there is no such service"
                continue
            if record.port == 0:  # Consul: the service has no port
                self.why_empty = f"the SRV record of {name} has port 0"
                continue
            hosts = self._additional_hosts(response, record.target) or self.hosts(record.target)
            servers.update((host, record.port) for host in hosts)
        return servers

    def _additional_hosts(
        self, response: dns.message.Message | None, target: dns.name.Name
    ) -> set[str]:
        """Return the addresses of ``target`` in the additional section of the response."""
        assert response is not None  # noqa: S101 - it has SRV records
        for kind in self._types:
            found = response.get_rrset(response.additional, target, dns.rdataclass.IN, kind)
            if found:
                self._note_ttl(found.ttl)
                return _hosts(found)
        return set()

    def _records(
        self, name: str | dns.name.Name, kind: dns.rdatatype.RdataType
    ) -> tuple[dns.rrset.RRset | None, dns.message.Message | None]:
        """Return the records of ``name`` and the response.

        The records are None if the name has none or does not exist.
        """
        try:
            answer = self._resolver.resolve(
                name,
                kind,
                raise_on_no_answer=False,
                lifetime=max(0.0, self._deadline - time.monotonic()),
                search=True,
            )
        except dns.resolver.NXDOMAIN as error:
            self._note_ttl(*(_empty_ttl(each) for each in error.kwargs["responses"].values()))
            self.why_empty = str(error)
            return None, None
        if answer.rrset is None:
            self._note_ttl(_empty_ttl(answer.response))
            self.why_empty = f"{answer.canonical_name} has no {kind.name} records"
        else:
            self._note_ttl(answer.chaining_result.minimum_ttl)
        return answer.rrset, answer.response

    def _note_ttl(self, *ttls: int) -> None:
        self.ttl_seconds = min(self.ttl_seconds, *ttls)


def _empty_ttl(response: dns.message.QueryMessage) -> int:
    """Return the TTL of an empty response: 0 without an SOA record (RFC 2308, section 5)."""
    if not any(each.rdtype == dns.rdatatype.SOA for each in response.authority):
        return 0
    return response.resolve_chaining().minimum_ttl


def _hosts(records: dns.rrset.RRset | None) -> set[str]:
    return {record.address for record in records or ()}
