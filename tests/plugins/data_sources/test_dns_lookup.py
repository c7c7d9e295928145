"""DNS lookups with a real server: kinds of records, search domains, TCP, TTL and failures."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import dns.exception
import dns.rcode
import pytest
import pytest_asyncio
from dns_server import DnsServer, dns_server

from epp_plugins.data_sources import dns_lookup
from epp_plugins.data_sources.dns_lookup import LookupResult

WEB, SRV = "web.test.", "_http._tcp.web.test."


@pytest_asyncio.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with dns_server() as made:
        yield made


async def look_up(server: DnsServer, name: str, *ports: int, **fields: Any) -> LookupResult:
    fields = {"nameservers": [server.address], "resolv_conf": Path("/nonexistent"), **fields}
    return await asyncio.to_thread(partial(dns_lookup.look_up, name, ports, **fields))


@pytest.mark.parametrize(
    ("records", "ports", "ip_families", "want"),
    [
        pytest.param(
            {"A": ["10.0.0.2", "10.0.0.1"]},
            [80],
            ["IPv4", "IPv6"],
            ["10.0.0.1:80", "10.0.0.2:80"],
            id="addresses in a fixed order",
        ),
        pytest.param(
            {"A": ["10.0.0.1", "10.0.0.2"]},
            [8001, 8000],
            ["IPv4"],
            ["10.0.0.1:8001", "10.0.0.1:8000", "10.0.0.2:8001", "10.0.0.2:8000"],
            id="each port of each address, in the order of the ports",
        ),
        pytest.param(
            {"AAAA": ["fd00::7"]}, [80], ["IPv4", "IPv6"], ["[fd00::7]:80"], id="IPv6 alone"
        ),
        pytest.param(
            {"A": ["10.0.0.1"], "AAAA": ["fd00::1"]},
            [80],
            ["IPv4", "IPv6"],
            ["10.0.0.1:80"],
            id="a dual-stack host is one endpoint",
        ),
        pytest.param(
            {"A": ["10.0.0.1"], "AAAA": ["fd00::1"]},
            [80],
            ["IPv6", "IPv4"],
            ["[fd00::1]:80"],
            id="IPv6 is preferred",
        ),
        pytest.param({"AAAA": ["fd00::1"]}, [80], ["IPv4"], [], id="IPv6 is not wanted"),
    ],
)
async def test_addresses_and_ports_are_endpoints(
    server: DnsServer,
    records: dict[str, list[str]],
    ports: list[int],
    ip_families: list[str],
    want: list[str],
) -> None:
    server.zone = {(WEB, kind): values for kind, values in records.items()}
    found = await look_up(server, WEB, *ports, ip_families=ip_families)
    assert list(found.addresses) == want


@pytest.mark.parametrize("adds_hosts", [True, False])
async def test_srv_records_give_hosts_and_ports(server: DnsServer, adds_hosts: bool) -> None:
    server.adds_hosts = adds_hosts
    server.zone = {
        (SRV, "SRV"): ["0 1 8000 a.test.", "5 9 8001 a.test.", "0 1 8000 b.test.", "0 1 1 c.test."],
        ("a.test.", "A"): ["10.0.0.1"],
        ("a.test.", "AAAA"): ["fd00::1"],
        ("b.test.", "AAAA"): ["fd00::2"],
    }
    found = await look_up(server, SRV)
    assert found.addresses == ("10.0.0.1:8000", "10.0.0.1:8001", "[fd00::2]:8000")
    asked = {name for name, _, _ in server.queries}
    # c.test. is in no response: it does not exist.
    assert asked == ({SRV, "c.test."} if adds_hosts else {SRV, "a.test.", "b.test.", "c.test."})


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("0 0 0 .", "there is no such service"),
        ("0 0 0 a.test.", "port 0"),
        ("0 0 80 c.test.", "does not exist: c.test."),
    ],
)
async def test_an_srv_record_without_a_server_is_no_endpoint(
    server: DnsServer, record: str, why: str
) -> None:
    server.zone = {(SRV, "SRV"): [record], ("a.test.", "A"): ["10.0.0.1"]}
    found = await look_up(server, SRV)
    assert found.addresses == ()
    assert why in found.why_empty


async def test_a_host_whose_lookup_fails_fails_the_lookup(server: DnsServer) -> None:
    server.adds_hosts, server.refused_types = False, {"A"}
    server.zone = {(SRV, "SRV"): ["0 1 80 a.test."], ("a.test.", "AAAA"): ["fd00::1"]}
    with pytest.raises(dns.exception.DNSException, match="SERVFAIL"):
        await look_up(server, SRV)


async def test_a_truncated_response_is_requested_over_tcp(server: DnsServer) -> None:
    many = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(1000)]
    server.truncates = True
    server.set_hosts(WEB, *many)
    found = await look_up(server, WEB, 80)
    assert set(found.addresses) == {f"{each}:80" for each in many}
    assert server.queries == [(WEB, "A", "udp"), (WEB, "A", "tcp")]


@pytest.mark.parametrize(
    ("options", "name", "asked"),
    [
        pytest.param("ndots:5", "web.llm", ["web.llm.svc.test.", "web.llm.test."], id="searched"),
        pytest.param("ndots:1", "web.llm.test", ["web.llm.test."], id="enough dots"),
        pytest.param("ndots:5", "web.llm.test.", ["web.llm.test."], id="absolute"),
    ],
)
async def test_search_domains_and_ndots_are_those_of_resolv_conf(
    server: DnsServer, tmp_path: Path, options: str, name: str, asked: list[str]
) -> None:
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text(f"search svc.test test\noptions {options}\n")
    server.set_hosts("web.llm.test.", "10.0.0.1")
    found = await look_up(server, name, 80, resolv_conf=resolv_conf)
    assert found.addresses == ("10.0.0.1:80",)
    assert [each for each, _, _ in server.queries] == asked


def test_the_name_servers_are_those_of_resolv_conf_or_the_given_ones(tmp_path: Path) -> None:
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 10.96.0.10\nnameserver fd00::53\n")
    # Not by a lookup: they are asked on port 53.
    resolver = dns_lookup._resolver([], resolv_conf)
    assert resolver.nameservers == ["10.96.0.10", "fd00::53"]
    (given,) = dns_lookup._resolver([("10.0.0.53", 5353)], resolv_conf).nameservers
    assert str(given) == "Do53:10.0.0.53@5353"


@pytest.mark.parametrize("content", [None, "search test\n"], ids=["missing", "no name server"])
async def test_without_a_name_server_the_lookup_fails(
    tmp_path: Path, server: DnsServer, content: str | None
) -> None:
    resolv_conf = tmp_path / "resolv.conf"
    if content is not None:
        resolv_conf.write_text(content)
    with pytest.raises(dns.exception.DNSException, match=r"resolv\.conf|no nameservers"):
        await look_up(server, WEB, 80, nameservers=[], resolv_conf=resolv_conf)


async def test_the_ttl_is_the_shortest_of_the_response(server: DnsServer) -> None:
    server.ttl = 7
    server.set_hosts(WEB, "10.0.0.1")
    assert (await look_up(server, WEB, 80)).ttl_seconds == 7
    server.zone["alias.test.", "CNAME"] = [WEB]
    found = await look_up(server, "alias.test.", 80)
    assert (found.addresses, found.ttl_seconds) == (("10.0.0.1:80",), 7)


@pytest.mark.parametrize(
    ("negative_ttl", "want"), [(4, 4.0), (None, 0.0)], ids=["of the SOA record", "none"]
)
@pytest.mark.parametrize("exists", [True, False])
async def test_an_empty_response_has_a_ttl_and_a_reason(
    server: DnsServer, exists: bool, negative_ttl: int | None, want: float
) -> None:
    server.negative_ttl = negative_ttl
    if exists:
        server.zone = {(WEB, "TXT"): ["x"]}
    found = await look_up(server, WEB, 80)
    assert (found.addresses, found.ttl_seconds) == ((), want)
    assert found.why_empty == (
        "web.test. has no AAAA records"
        if exists
        else "The DNS query name does not exist: web.test."
    )


@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.REFUSED])
async def test_a_server_that_fails_fails_the_lookup(
    server: DnsServer, rcode: dns.rcode.Rcode
) -> None:
    server.rcode = rcode
    with pytest.raises(dns.exception.DNSException, match=rcode.name):
        await look_up(server, WEB, 80)


async def test_a_server_that_fails_is_replaced_by_the_next(server: DnsServer) -> None:
    server.set_hosts(WEB, "10.0.0.1")
    async with dns_server() as other:
        other.rcode = dns.rcode.SERVFAIL
        found = await look_up(server, WEB, 80, nameservers=[other.address, server.address])
    assert found.addresses == ("10.0.0.1:80",)
    assert len(other.queries) == 1


async def test_a_silent_server_is_asked_again_until_the_time_is_up(
    server: DnsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns_lookup, "ATTEMPT_SECONDS", 0.05)
    monkeypatch.setattr(dns_lookup, "LOOKUP_SECONDS", 0.4)
    server.is_silent = True
    with pytest.raises(dns.exception.DNSException, match="timed out"):
        await look_up(server, WEB, 80)
    assert len(server.queries) > 1
