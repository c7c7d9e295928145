"""``--endpoint`` values are parsed strictly and resolved once."""

import asyncio
from collections.abc import Iterable

import pytest

from epp.building import make_builder
from epp.config import ConfigError
from epp.data_layer import DiscoveryError, EndpointSpec, StaticDiscovery, fixed_discoveries
from epp.data_layer.static import StaticEndpoint, parse_endpoint, resolve_host
from epp_plugins.data_sources.dns_discovery import DnsDiscovery
from epp_plugins.data_sources.dns_params import DnsName


class Sink:
    """Remembers the report and that there was one."""

    def __init__(self) -> None:
        self.specs: list[EndpointSpec] = []
        self.reported = asyncio.Event()

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        assert source == "--endpoint"
        self.specs = list(specs)
        self.reported.set()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("10.0.0.1:80", ("default/endpoint-2", "10.0.0.1", 80), id="IPv4"),
        pytest.param("[::1]:80", ("default/endpoint-2", "::1", 80), id="IPv6"),
        pytest.param("gpu.local:80", ("default/endpoint-2", "gpu.local", 80), id="host name"),
        pytest.param("a=h:1", ("default/a", "h", 1), id="named"),
        pytest.param("ns/a=h:1", ("ns/a", "h", 1), id="with a namespace"),
    ],
)
def test_values_are_parsed(value: str, expected: tuple[str, str, int]) -> None:
    assert parse_endpoint(value, 2) == StaticEndpoint(*expected)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param("10.0.0.1", "the port is missing", id="no port"),
        pytest.param(":80", "the host is missing", id="no host"),
        pytest.param("::1:80", "needs brackets", id="bare IPv6"),
        pytest.param("http://10.0.0.1:80", "without a scheme", id="URL"),
        pytest.param("h:0", "port '0'", id="port zero"),
        pytest.param("h:65536", "port '65536'", id="port too large"),
        pytest.param("h:http", "port 'http'", id="port no number"),
        pytest.param("a b=h:1", "name 'a b'", id="space in the name"),
        pytest.param("=h:1", "name ''", id="empty name"),
        pytest.param("a/b/c=h:1", "name 'a/b/c'", id="two namespaces"),
    ],
)
def test_a_wrong_value_is_named(value: str, message: str) -> None:
    with pytest.raises(DiscoveryError, match=message) as caught:
        StaticDiscovery([value])
    assert repr(value) in str(caught.value)


async def test_host_names_are_resolved_and_the_report_is_made_once() -> None:
    async def resolve(host: str) -> str:
        return {"four": "10.0.0.4", "six": "fd00::6"}[host]

    sink = Sink()
    discovery = StaticDiscovery(["four:1", "x=six:2", "[FD00::7]:3"], resolve=resolve)
    task = asyncio.create_task(discovery.run(sink))
    await sink.reported.wait()
    assert sink.specs == [
        EndpointSpec("default/endpoint-0", "10.0.0.4:1"),
        EndpointSpec("default/x", "[fd00::6]:2"),
        EndpointSpec("default/endpoint-2", "[fd00::7]:3"),
    ]
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_unknown_host_fails_the_start() -> None:
    async def resolve(host: str) -> str:
        raise OSError("Name or service not known")

    with pytest.raises(DiscoveryError, match=r"--endpoint nowhere:1: .* does not resolve"):
        await StaticDiscovery(["nowhere:1"], resolve=resolve).run(Sink())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("vllm.llm:8000", DnsName("vllm.llm", [8000])),
        ("_http._tcp.vllm", DnsName("_http._tcp.vllm", records="srv")),
        ("_vllm:80", DnsName("_vllm", [80])),
    ],
)
def test_dns_names_are_followed_by_one_plugin(value: str, expected: DnsName) -> None:
    builder = make_builder()
    (discovery,) = fixed_discoveries(builder, [], None, ["web:80", value])
    assert isinstance(discovery, DnsDiscovery)
    assert discovery.name == "--endpoint-dns"
    assert discovery.params.names == [DnsName("web", [80]), expected]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("vllm", "the port is missing, expected NAME:PORT"),
        ("vllm:0", "port '0'"),
        ("a b:80", "hostname 'a b' is not a DNS name"),
        ("_http._tcp.vllm:80", "SRV records give the ports"),
    ],
)
def test_a_wrong_dns_name_is_refused(value: str, message: str) -> None:
    with pytest.raises((DiscoveryError, ConfigError), match="--endpoint-dns") as caught:
        fixed_discoveries(make_builder(), [], None, [value])
    assert message in str(caught.value)


async def test_the_system_resolver_is_asked() -> None:
    assert await resolve_host("127.0.0.1") == "127.0.0.1"
