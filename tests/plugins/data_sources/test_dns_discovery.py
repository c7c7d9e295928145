"""``dns-discovery`` follows TTLs, keeps endpoints on failures, and confirms empty responses."""

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from dns_server import dns_server
from log_watch import Logs

from epp.building import make_builder
from epp.config import ConfigError, load_text
from epp.data_layer import EndpointStore
from epp.data_layer.plugins import DuplicateEndpointError, EndpointSink, EndpointSpec
from epp_plugins.data_sources.dns_discovery import DnsDiscovery
from epp_plugins.data_sources.dns_lookup import LookupResult
from epp_plugins.data_sources.dns_params import DnsName, Params

virtual_time = pytest.mark.looptime
WEB = DnsName("web.test", [80])
EMPTY = LookupResult((), 5.0, "web.test. has no A records")


def found(*hosts: str, ttl: float = 5.0) -> LookupResult:
    return LookupResult(tuple(f"{host}:80" for host in hosts), ttl)


class NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return a


class Names:
    """Responses by name, which a test changes, and when names were looked up."""

    def __init__(self, **responses: LookupResult | Exception) -> None:
        self.responses = responses
        self.times: list[float] = []

    async def look_up(self, name: DnsName) -> LookupResult:
        self.times.append(asyncio.get_running_loop().time())
        response = self.responses[name.hostname.partition(".")[0]]
        if isinstance(response, Exception):
            raise response
        return response


class Sink:
    """Records reports with their times; may refuse them as another source's."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, list[EndpointSpec]]] = []
        self.is_refusing = False

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        if self.is_refusing:
            raise DuplicateEndpointError("default/10.0.0.1:80", "static", source)
        self.reports.append((asyncio.get_running_loop().time(), list(specs)))

    @property
    def addresses(self) -> list[list[str]]:
        """Addresses of each report."""
        return [[spec.address for spec in specs] for _, specs in self.reports]


@asynccontextmanager
async def following(
    names: Names,
    sink: EndpointSink,
    *dns_names: DnsName,
    rng: random.Random | None = None,
    **fields: Any,
) -> AsyncIterator[None]:
    """Run a discovery, without jitter unless there is an ``rng``."""
    discovery = DnsDiscovery(
        "dns",
        Params(list(dns_names or (WEB,)), **fields),
        rng=rng or NoJitter(),
        clock=asyncio.get_running_loop().time,
        look_up=names.look_up,
    )
    task = asyncio.create_task(discovery.run(sink))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- refresh ----------------------------------------------------------------------------------


@virtual_time
@pytest.mark.parametrize(
    ("response", "times"),
    [
        pytest.param(found("10.0.0.1", ttl=5), [0, 5, 10], id="the TTL"),
        pytest.param(found("10.0.0.1", ttl=0), [0, 2, 4], id="at least the minimum"),
        pytest.param(found("10.0.0.1", ttl=300), [0, 9, 18], id="at most the maximum"),
        pytest.param(EMPTY, [0, 5, 10], id="the TTL of an empty response"),
    ],
)
async def test_a_name_is_looked_up_again_after(response: LookupResult, times: list[float]) -> None:
    names, sink = Names(web=response), Sink()
    async with following(names, sink, min_refresh_seconds=2.0, max_refresh_seconds=9.0):
        await asyncio.sleep(times[-1] + 0.5)
    assert names.times == times
    assert len(sink.reports) == 1  # nothing has changed


@virtual_time
async def test_refreshes_are_spread() -> None:
    names = Names(web=found("10.0.0.1", ttl=10))
    async with following(names, Sink(), rng=random.Random(1)):
        await asyncio.sleep(1000)
    waits = [after - before for before, after in zip(names.times, names.times[1:], strict=False)]
    assert 10.0 <= min(waits) < 10.1
    assert 10.9 < max(waits) <= 11.0


# --- reports ----------------------------------------------------------------------------------


@virtual_time
async def test_an_endpoint_that_stays_keeps_its_state() -> None:
    names, store = Names(web=found("10.0.0.1", "10.0.0.2")), EndpointStore()
    async with following(names, store):
        await asyncio.sleep(1)
        _, stays = store.snapshot
        names.responses["web"] = found("10.0.0.2", "10.0.0.3")
        await asyncio.sleep(5)
        assert [each.name for each in store.snapshot] == [
            "default/10.0.0.2:80",
            "default/10.0.0.3:80",
        ]
        assert store.snapshot[0] is stays


@virtual_time
async def test_names_have_labels_and_an_address_of_two_counts_once() -> None:
    names = Names(decode=found("10.0.0.1", "10.0.0.2"), prefill=found("10.0.0.2", "fd00::3"))
    sink = Sink()
    labels = [{"role": "decode"}, {"role": "prefill"}]
    decode, prefill = (
        DnsName("decode", [80], labels=labels[0]),
        DnsName("prefill", [80], labels=labels[1]),
    )
    async with following(names, sink, decode, prefill):
        await asyncio.sleep(1)
    ((_, specs),) = sink.reports
    assert specs == [
        EndpointSpec("default/10.0.0.1:80", "10.0.0.1:80", labels[0]),
        EndpointSpec("default/10.0.0.2:80", "10.0.0.2:80", labels[0]),
        EndpointSpec("default/fd00::3:80", "fd00::3:80", labels[1]),
    ]


@virtual_time
async def test_the_first_report_waits_for_every_name(logs: Logs) -> None:
    names, sink = Names(a=found("10.0.0.1"), b=OSError("down")), Sink()
    async with following(names, sink, DnsName("a", [80]), DnsName("b", [80])):
        await asyncio.sleep(20)
        assert sink.reports == []
        names.responses["b"] = EMPTY
        await asyncio.sleep(20)
    assert sink.addresses == [["10.0.0.1:80"]]
    assert [entry["event"] for entry in logs.entries] == [
        "DNS lookup failed, last endpoints kept",
        "DNS lookup recovered",
        "DNS name has no addresses",
    ]


@virtual_time
async def test_endpoints_of_another_source_fail_the_start() -> None:
    sink = Sink()
    sink.is_refusing = True
    discovery = DnsDiscovery("dns", Params([WEB]), look_up=Names(web=found("10.0.0.1")).look_up)
    with pytest.raises(DuplicateEndpointError, match="'static' has it already"):
        await discovery.run(sink)


@virtual_time
async def test_endpoints_that_another_source_has_later_are_reported_once(logs: Logs) -> None:
    names, sink = Names(web=found("10.0.0.2")), Sink()
    async with following(names, sink):
        await asyncio.sleep(1)
        sink.is_refusing = True
        names.responses["web"] = found("10.0.0.1")
        await asyncio.sleep(20)
        assert sink.addresses == [["10.0.0.2:80"]]
        sink.is_refusing = False  # the other source gave it up; DNS did not change
        await asyncio.sleep(5)
    assert sink.addresses == [["10.0.0.2:80"], ["10.0.0.1:80"]]
    (entry,) = logs.entries
    assert entry["event"] == "DNS endpoints refused, last good endpoints kept"


# --- failures and empty responses -------------------------------------------------------------


@virtual_time
async def test_a_failure_keeps_the_endpoints_and_is_reported_once(logs: Logs) -> None:
    names, sink = Names(web=found("10.0.0.1")), Sink()
    async with following(names, sink):
        await asyncio.sleep(1)
        names.responses["web"] = OSError("no server responds")
        await asyncio.sleep(100)
        names.responses["web"] = found("10.0.0.1")
        await asyncio.sleep(40)
    assert names.times[:8] == [0, 5, 6, 8, 12, 20, 36, 66]
    assert sink.addresses == [["10.0.0.1:80"]]
    assert logs.entries == [
        {
            "event": "DNS lookup failed, last endpoints kept",
            "log_level": "warning",
            "hostname": "web.test",
            "endpoints": 1,
            "error": "no server responds",
        },
        {"event": "DNS lookup recovered", "log_level": "info", "hostname": "web.test"},
    ]


@virtual_time
async def test_a_name_without_addresses_loses_its_endpoints_after_a_while(logs: Logs) -> None:
    names, sink = Names(web=found("10.0.0.1")), Sink()
    async with following(names, sink, empty_after_seconds=3.0):
        await asyncio.sleep(1)
        names.responses["web"] = EMPTY
        await asyncio.sleep(19)
        names.responses["web"] = found("10.0.0.2")
        await asyncio.sleep(5)
    # Empty at 5, 6, 7 and 8: then the TTL of 5 s counts again.
    assert names.times == [0, 5, 6, 7, 8, 13, 18, 23]
    assert [(time, len(specs)) for time, specs in sink.reports] == [(0, 1), (8, 0), (23, 1)]
    assert [(entry["log_level"], entry["event"]) for entry in logs.entries] == [
        ("warning", "DNS name has no addresses"),
        ("info", "DNS name has addresses again"),
    ]
    assert logs.entries[0]["reason"] == "web.test. has no A records"


@virtual_time
@pytest.mark.parametrize(
    "between", [found("10.0.0.1"), OSError("down")], ids=["addresses", "a failure"]
)
async def test_only_uninterrupted_empty_responses_count(between: LookupResult | Exception) -> None:
    names, sink = Names(web=found("10.0.0.1", ttl=1)), Sink()
    async with following(names, sink, empty_after_seconds=3.0):
        await asyncio.sleep(0.5)
        for _ in range(10):
            names.responses["web"] = EMPTY
            await asyncio.sleep(2)
            names.responses["web"] = between
            await asyncio.sleep(1)
    assert sink.addresses == [["10.0.0.1:80"]]


@virtual_time
async def test_empty_responses_count_at_once_at_the_start_and_on_demand(logs: Logs) -> None:
    names, sink = Names(web=EMPTY), Sink()
    async with following(names, sink, empty_after_seconds=0.0):
        await asyncio.sleep(1)
        names.responses["web"] = found("10.0.0.1")
        await asyncio.sleep(5)
        names.responses["web"] = EMPTY
        await asyncio.sleep(5)
    assert [(time, len(specs)) for time, specs in sink.reports] == [(0, 0), (5, 1), (10, 0)]
    assert len(logs.entries) == 3


# --- with a server ----------------------------------------------------------------------------


async def test_changes_in_dns_are_seen() -> None:
    sink: asyncio.Queue[list[str]] = asyncio.Queue()

    class Queueing:
        def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
            sink.put_nowait([spec.address for spec in specs])

    async with dns_server() as server:
        server.ttl = server.negative_ttl = 0
        server.set_hosts("web.test.", "10.0.0.1")
        params = Params(
            [DnsName("web.test.", [80, 81])],
            nameservers=[f"127.0.0.1:{server.port}"],
            min_refresh_seconds=0.01,
            empty_after_seconds=0.01,
        )
        task = asyncio.create_task(DnsDiscovery("dns", params).run(Queueing()))
        assert await sink.get() == ["10.0.0.1:80", "10.0.0.1:81"]
        server.set_hosts("web.test.", "10.0.0.2")
        assert await sink.get() == ["10.0.0.2:80", "10.0.0.2:81"]
        server.set_hosts("web.test.")
        assert await sink.get() == []
        # It does not wait for the lookup that is under way.
        server.is_silent = True
        server.news.clear()
        await server.news.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# --- parameters -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_srv"),
    [
        ({"hostname": "web", "ports": [8000, 8001]}, False),
        ({"hostname": "web.llm.svc.cluster.local.", "ports": [1]}, False),
        ({"hostname": "_http._tcp.web"}, True),
        ({"hostname": "web.service.consul", "records": "srv"}, True),
        ({"hostname": "_http._tcp.web", "records": "address", "ports": [1]}, False),
        ({"hostname": "_web.test", "ports": [1]}, False),
    ],
)
def test_the_kind_of_records_follows_from_the_name(name: dict[str, Any], is_srv: bool) -> None:
    assert msgspec.convert(name, DnsName).is_srv is is_srv


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("{}", "required field `names` is missing"),
        ("{names: []}", "parameters.names: "),
        ("{names: [{hostname: web}]}", "`ports` is missing, such as `ports: [8000]`"),
        ("{names: [{hostname: _http._tcp.web, ports: [1]}]}", "SRV records give the ports; remove"),
        ("{names: [{hostname: web, ports: [0]}]}", "names[0].ports[0]: "),
        ("{names: [{hostname: 'a b', ports: [1]}]}", "hostname 'a b' is not a DNS name"),
        ("{names: [{hostname: 'http://web', ports: [1]}]}", "'http://web' is not a DNS name"),
        ("{names: [{hostname: a..b, ports: [1]}]}", "'a..b' is not a DNS name"),
        (
            "{names: [{hostname: 10.0.0.1, ports: [1]}]}",
            "is an IP address; list it with --endpoint",
        ),
        ("{names: [{hostname: web, ports: [1], records: mx}]}", "names[0].records: "),
        ("{names: [{hostname: web, port: 1}]}", "unknown field `port`; did you mean `ports`?"),
        (
            "{names: [{hostname: web, ports: [1]}], nameservers: [dns]}",
            "name server 'dns' is not an IP",
        ),
        (
            "{names: [{hostname: web, ports: [1]}], nameservers: ['dns:53']}",
            "name server 'dns:53' is not an IP address, or one with a port",
        ),
        ("{names: [{hostname: web, ports: [1]}], ipFamilies: [ipv4]}", "ipFamilies[0]: "),
        (
            "{names: [{hostname: web, ports: [1]}], minRefreshSeconds: 60}",
            "minRefreshSeconds (60) is greater than maxRefreshSeconds (30)",
        ),
    ],
)
def test_wrong_parameters_are_named(parameters: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_builder().build(configuration(parameters))
    assert message in str(caught.value)
    assert "epp.yaml:4" in str(caught.value)


def configuration(parameters: str) -> Any:
    return load_text(
        f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: dns-discovery, parameters: {parameters}}}
dataLayer: {{discovery: {{pluginRef: dns-discovery}}}}
""",
        "epp.yaml",
    )


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration("{names: [{hostname: web, ports: [1]}]}")
    assert make_builder().build(config).discovery
    monkeypatch.setitem(sys.modules, "dns", None)
    with pytest.raises(
        ConfigError, match=r"dnspython is not installed: pip install 'endpoint-picker\[dns\]'"
    ):
        make_builder().build(config)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("10.0.0.53", ("10.0.0.53", 53)),
        ("10.0.0.53:5353", ("10.0.0.53", 5353)),
        ("fd00::53", ("fd00::53", 53)),
        ("[fd00::53]:5353", ("fd00::53", 5353)),
    ],
)
def test_name_servers_have_a_port(text: str, want: tuple[str, int]) -> None:
    assert Params([WEB], nameservers=[text]).servers() == [want]
