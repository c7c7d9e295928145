"""The doctor queries model servers: a fake fleet, and faulty servers."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from epp.building import make_builder
from epp.config import PluginGraph, load_text
from epp.config.instances import close_all
from epp.data_layer import EndpointSpec
from epp.doctor import Deployment, Diagnosis, Level, examine_deployment, probe_all
from epp.doctor.fixes import mend
from epp.doctor.model_servers import ModelServer, Speaks
from epp.lab.fleet import Fleet, FleetConfig

from .envoys import level_of, rows_of
from .pages import SGLANG, VLLM, models, serving_pages

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
PREFIX = """\
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer}]
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(FleetConfig(endpoints=2)) as running:
        yield running


async def graph_of(text: str = HEAD) -> PluginGraph:
    return await asyncio.to_thread(lambda: make_builder().build(load_text(text, "config.yaml")))


async def examine(
    addresses: list[str] | tuple[str, ...], graph: PluginGraph | None = None, **given: Any
) -> Diagnosis:
    specs = [EndpointSpec(f"default/s{n}", each) for n, each in enumerate(addresses)]
    servers = await probe_all(specs, graph)
    try:
        return examine_deployment(Deployment(graph=graph, servers=servers, **given))
    finally:
        if graph is not None:
            close_all(each.plugin for each in graph.instances.values())


def faults(found: Diagnosis) -> list[tuple[str, str, str]]:
    return [
        (row.finding.level.value, row.check, row.finding.where.partition(" ")[0])
        for row in found.rows
        if row.finding.level is not Level.OK
    ]


async def test_there_is_nothing_to_mend_in_a_fleet_that_is_well(fleet: Fleet) -> None:
    found = await examine(
        fleet.addresses, await graph_of(f"{HEAD}{PREFIX}plugins: [{{type: prefix-cache-scorer}}]\n")
    )
    assert faults(found) == []
    (row,) = rows_of(found, "server-engines")
    assert row.finding.found == "engine: vllm: default/s0, default/s1"
    assert {each.check for each in found.not_checked} >= {"rbac", "epp-ready", "ports"}


async def test_a_server_that_is_dead(fleet: Fleet) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        found = await examine([fleet.addresses[0], address], await graph_of())
    assert faults(found) == [("error", "server-reachable", "default/s1")]
    (row,) = rows_of(found, "server-reachable")
    assert row.finding.found == "Connection refused"


async def test_a_server_that_speaks_tls(fleet: Fleet, stack: ExitStack, tmp_path: Path) -> None:
    pages = {"/health": "", "/metrics": VLLM, "/v1/models": models("tiny")}
    address = stack.enter_context(serving_pages(pages, tls=tmp_path))
    found = await examine([fleet.addresses[0], address], await graph_of(), pools_speak_tls=False)
    errors = faults(found)
    assert ("error", "server-tls", "default/s1") in errors
    assert ("error", "server-tls", "") in errors  # some speak it, others do not
    (row,) = rows_of(found, "server-metrics")
    assert row.finding.mend == "Set scheme: https of metrics-data-source"
    both = await examine([address], None, pools_speak_tls=True)
    assert level_of(both, "server-tls") == "ok"
    unknown = await examine([address], None)
    assert level_of(unknown, "server-tls") == "warning"


async def test_a_server_that_speaks_no_http(stack: ExitStack) -> None:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    server.settimeout(5)

    def respond() -> None:
        for _ in range(2):
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00")

    thread = threading.Thread(target=respond)
    thread.start()
    port = server.getsockname()[1]
    found = await examine([f"127.0.0.1:{port}"])
    thread.join()
    assert faults(found) == [("error", "server-reachable", "default/s0")]
    (row,) = rows_of(found, "server-reachable")
    assert "speaks neither HTTP nor TLS" in row.finding.found


async def test_a_server_that_is_unhealthy(stack: ExitStack) -> None:
    address = stack.enter_context(serving_pages({"/metrics": VLLM}))
    found = await examine([address])
    assert level_of(found, "server-health") == "ok"  # an engine without that page
    async with Fleet(FleetConfig(endpoints=1)) as fleet:
        fleet.servers[0].faults.health_status = 503
        found = await examine(fleet.addresses)
    assert faults(found) == [("error", "server-health", "default/s0")]


async def test_a_page_of_another_engine_is_named_and_the_configuration_mended(
    stack: ExitStack,
) -> None:
    pages = {"/health": "", "/metrics": SGLANG, "/v1/models": models("m")}
    address = stack.enter_context(serving_pages(pages))
    text = HEAD + (
        "plugins:\n- type: metrics-data-source\n- type: core-metrics-extractor  # of all\n"
        "dataLayer:\n  sources:\n  - pluginRef: metrics-data-source\n"
        "    extractors: [{pluginRef: core-metrics-extractor}]\n"
    )
    graph = await graph_of(text)
    servers = await probe_all([EndpointSpec("default/s0", address)], graph)
    deployment = Deployment(graph=graph, servers=servers)
    (row,) = rows_of(examine_deployment(deployment), "server-metrics")
    assert row.finding.level is Level.ERROR
    assert "vllm:num_requests_running" in row.finding.found
    assert "The page is that of sglang" in row.finding.mend

    def diagnose(changed: str) -> Diagnosis:
        built = make_builder().build(load_text(changed, "config.yaml"))
        return examine_deployment(Deployment(graph=built, servers=servers))

    fixed = await asyncio.to_thread(mend, text, diagnose, is_config=True)
    assert "  parameters:\n    defaultEngine: sglang\n" in fixed.text
    assert "# of all" in fixed.text
    assert [each.check for each in fixed.left] == []
    assert faults(await examine([address], await graph_of(fixed.text))) == []


async def test_servers_of_different_kinds(stack: ExitStack) -> None:
    one = {
        "/health": "",
        "/metrics": VLLM,
        "/v1/models": models("m", "adapter"),
        "/version": '{"version": "0.11.0"}',
    }
    other = {
        **one,
        "/metrics": VLLM.replace("128", "16").replace("False", "True").replace("500", "400"),
        "/v1/models": models("m"),
        "/version": '{"version": "0.10.2"}',
    }
    addresses = [stack.enter_context(serving_pages(each)) for each in (one, other)]
    config = (
        "plugins:\n- type: prefix-cache-scorer\n- type: approx-prefix-cache-producer\n"
        "  parameters: {autoTune: false, blockSizeTokens: 64}\n"
    )
    found = await examine(addresses, await graph_of(HEAD + config + PREFIX))
    assert faults(found) == [
        ("warning", "server-engines", ""),
        ("warning", "server-models", "default/s1"),
        ("warning", "prefix-caching", "default/s0"),
        ("warning", "block-size", ""),
        ("warning", "block-size", "plugins[1].parameters.blockSizeTokens"),
    ]
    (engines,) = rows_of(found, "server-engines")
    assert engines.finding.found == "vllm 0.10.2: default/s1; vllm 0.11.0: default/s0"
    (served,) = rows_of(found, "server-models")
    assert "does not serve adapter" in served.finding.found
    (cache,) = rows_of(found, "cache-size")
    assert "400 of default/s1; 500 of default/s0" in cache.finding.found
    fix = rows_of(found, "block-size")[1].finding.fix
    assert fix is not None
    assert (fix.path, json.loads(fix.value or "")) == ("plugins[1].parameters.autoTune", True)


async def test_a_prefix_cache_that_is_off_is_only_a_remark_without_prefix_plugins(
    stack: ExitStack,
) -> None:
    address = stack.enter_context(serving_pages({"/health": "", "/metrics": VLLM}))
    found = await examine([address], None)
    assert level_of(found, "prefix-caching") == "ok"
    assert level_of(found, "server-models") == "warning"


@pytest.mark.parametrize(
    ("ahead", "level"),
    [(0.0, "ok"), (0.4, "ok"), (-20.0, "warning"), (300.0, "error")],
)
async def test_the_clocks_of_the_servers(ahead: float, level: str, stack: ExitStack) -> None:
    address = stack.enter_context(serving_pages({"/health": ""}, ahead_seconds=ahead))
    found = await examine([address])
    assert level_of(found, "clock-skew") == level
    if level != "ok":
        (row,) = rows_of(found, "clock-skew")
        assert ("ahead" if ahead > 0 else "behind") in row.finding.found


RECORDED = Path(__file__).parents[1] / "plugins/data_sources/data/metrics_load_a.prom"


async def test_the_recorded_page_of_a_real_vllm(stack: ExitStack) -> None:
    pages = {"/health": "", "/metrics": RECORDED.read_text(), "/v1/models": models("tiny")}
    address = stack.enter_context(serving_pages(pages))
    graph = await graph_of(HEAD)
    (server,) = await probe_all([EndpointSpec("default/s0", address)], graph)
    assert (server.engine, server.block_size, server.caches_prefixes) == ("vllm", 32, True)
    assert [(each.extractor, each.fault) for each in server.extractions] == [
        ("core-metrics-extractor", "")
    ]
    assert server.metrics.cache_blocks == server.blocks > 0


async def test_no_endpoints_is_an_error() -> None:
    assert faults(await examine([])) == [("error", "server-reachable", "")]


def test_what_is_known_without_a_configuration_is_vllms_own() -> None:
    labels = {"block_size": "None", "num_gpu_blocks": "7", "enable_prefix_caching": "True"}
    server = ModelServer(name="a", address="b", speaks=Speaks.HTTP, cache_config=labels)
    assert (server.block_size, server.blocks, server.caches_prefixes) == (0, 7, True)
