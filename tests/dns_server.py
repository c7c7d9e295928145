"""An authoritative DNS server on loopback, over UDP and TCP, whose zone a test changes."""

import asyncio
import struct
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

SOA = "ns.test. admin.test. 1 60 60 60"
"""Start of the zone's SOA record; the last number is the TTL of empty responses."""


@dataclass(slots=True)
class DnsServer:
    """A DNS server.

    ``zone`` has the records by name and type, as in ``{("a.test.", "A"): ["127.0.0.1"]}``. A name
    with records of another type only has an empty response, one without any does not exist.
    """

    zone: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    ttl: int = 30
    negative_ttl: int | None = 5
    """TTL of empty responses; None for responses without an SOA record."""
    rcode: dns.rcode.Rcode | None = None
    """Response code of all responses, without records."""
    is_silent: bool = False
    """Whether it ignores queries."""
    truncates: bool = False
    """Whether responses over UDP are truncated."""
    adds_hosts: bool = True
    """Whether responses with SRV records contain the addresses of their hosts."""
    queries: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, type and transport of the queries so far."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each query."""
    port: int = 0
    refused_types: Collection[str] = ()
    """Types of records for which it responds with SERVFAIL."""

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def set_hosts(self, name: str, *addresses: str) -> None:
        """Replace the A records of a name; without any, the name does not exist."""
        self.zone.pop((name, "A"), None)
        if addresses:
            self.zone[name, "A"] = list(addresses)

    def respond(self, wire: bytes, transport: str) -> bytes | None:
        query = dns.message.from_wire(wire)
        (question,) = query.question
        name, kind = str(question.name), question.rdtype.name
        self.queries.append((name, kind, transport))
        self.news.set()
        if self.is_silent:
            return None
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA
        if self.rcode is not None or kind in self.refused_types:
            response.set_rcode(self.rcode or dns.rcode.SERVFAIL)
        elif transport == "udp" and self.truncates:
            response.flags |= dns.flags.TC
        else:
            self._fill(response, name, kind)
        return response.to_wire(max_size=65535)

    def _fill(self, response: dns.message.Message, name: str, kind: str) -> None:
        while alias := self.zone.get((name, "CNAME")):
            response.answer.append(self._rrset(name, "CNAME", alias))
            (name,) = alias
        if records := self.zone.get((name, kind)):
            response.answer.append(self._rrset(name, kind, records))
            if kind == "SRV" and self.adds_hosts:
                self._add_hosts(response, records)
            return
        if not any(known == name for known, _ in self.zone):
            response.set_rcode(dns.rcode.NXDOMAIN)
        if self.negative_ttl is not None:
            record = f"{SOA} {self.negative_ttl}"
            response.authority.append(dns.rrset.from_text("test.", 3600, "IN", "SOA", record))

    def _add_hosts(self, response: dns.message.Message, records: Sequence[str]) -> None:
        for target in dict.fromkeys(record.split()[-1] for record in records):
            for kind in ("A", "AAAA"):
                if hosts := self.zone.get((target, kind)):
                    response.additional.append(self._rrset(target, kind, hosts))

    def _rrset(self, name: str, kind: str, records: Sequence[str]) -> dns.rrset.RRset:
        return dns.rrset.from_text(name, self.ttl, "IN", kind, *records)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        response = self._server.respond(data, "udp")
        if response is not None and self._transport is not None:
            self._transport.sendto(response, addr)


@asynccontextmanager
async def dns_server(
    zone: dict[tuple[str, str], list[str]] | None = None,
) -> AsyncIterator[DnsServer]:
    """Run a DNS server on one port of UDP and TCP."""
    server = DnsServer(zone or {})

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        response = server.respond(await reader.readexactly(length), "tcp")
        if response is not None:
            writer.write(struct.pack("!H", len(response)) + response)
            await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(server), local_addr=server.address
        )
        try:
            yield server
        finally:
            transport.close()
