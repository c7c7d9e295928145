"""The guide's configuration of an EPP that chooses among clusters, over real sockets."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from epp.app import App, ServeSettings
from epp.config import ConfigError, load_text
from epp_plugins.state_keys import MULTICLUSTER_QUEUE_SIZE
from tools.harness.gateway import serving, until

from .scraped import Server, listening
from .test_decisions import HEAD, LONG, Epp

GUIDE = HEAD + (
    """\
plugins:
- {type: multicluster-file-discovery, name: discovery, parameters: {path: "CLUSTERS"}}
- {type: multicluster-metrics-data-source, name: metrics-source, parameters: {scheme: http}}
- {type: multicluster-metrics-extractor, name: metrics-extractor}
- {type: multicluster-session-affinity-filter, name: session-affinity}
- {type: multicluster-kv-cache-utilization-scorer, name: kv-cache}
- {type: multicluster-queue-scorer, name: queue}
- {type: max-score-picker}
- {type: single-profile-handler}
dataLayer:
  injectDefaults: false
  discovery: {pluginRef: discovery}
  sources:
  - pluginRef: metrics-source
    extractors: [{pluginRef: metrics-extractor}]
"""
)
PREFIX = HEAD + (
    """\
plugins:
- {type: multicluster-file-discovery, name: discovery, parameters: {path: "CLUSTERS"}}
- {type: multicluster-approx-prefix-cache-producer, parameters: {lruCapacityPerServer: 1000}}
- type: multicluster-prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: multicluster-approx-prefix-cache-producer}
dataLayer:
  injectDefaults: false
  discovery: {pluginRef: discovery}
"""
)


@dataclass
class ClusterEpp(Server):
    """The metrics page of a cluster's own EPP."""

    def page(self) -> bytes:
        return (
            f'llm_d_epp_average_queue_size{{name="pool"}} {self.waiting}\n'
            f'llm_d_epp_average_kv_cache_utilization{{name="pool"}} {self.kv_cache_usage}\n'
        ).encode()


@asynccontextmanager
async def choosing(
    tmp_path: Path, config: str, clusters: dict[str, ClusterEpp]
) -> AsyncIterator[Epp]:
    """Run an EPP over clusters whose gateways are names, and a client of it."""
    async with listening(clusters):
        file = tmp_path / "clusters.json"
        entries = [
            {
                "name": name,
                "address": f"gateway.{name}.example.com",
                "port": 443,
                "labels": {"metricsAddress": "127.0.0.1", "metricsPort": str(each.port)},
            }
            for name, each in clusters.items()
        ]
        await asyncio.to_thread(file.write_text, json.dumps({"endpoints": entries}))
        text = config.replace("CLUSTERS", str(file))
        settings = ServeSettings(
            allow_experimental_plugins=True,
            config=await asyncio.to_thread(load_text, text, "test"),
            host="127.0.0.1",
            grpc_port=0,
            grpc_health_port=0,
            metrics_port=0,
            drain_timeout_seconds=2.0,
            seed=1,
        )
        async with serving(settings) as picker:
            app, port = picker.app, picker.ports.grpc
            await until(lambda: len(app.pool.store.snapshot) == len(clusters))
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Epp(app, clusters, channel)


def queues(app: App) -> list[float | None]:
    return [each.attribute(MULTICLUSTER_QUEUE_SIZE) for each in app.pool.store.snapshot]


async def test_requests_go_to_the_cluster_with_room(tmp_path: Path) -> None:
    clusters = {"east": ClusterEpp(8, 0.5), "north": ClusterEpp(0, 0.1), "west": ClusterEpp(9, 0.9)}
    async with choosing(tmp_path, GUIDE, clusters) as epp:
        await until(lambda: queues(epp.app) == [8.0, 0.0, 9.0])
        assert (await epp.post()).server == "gateway.north.example.com:443"
        clusters["north"].waiting, clusters["north"].kv_cache_usage = 99, 1.0
        await until(lambda: queues(epp.app) == [8.0, 99.0, 9.0])
        decision = await epp.post()
        assert decision.server == "gateway.east.example.com:443"
        # A session stays, wherever there is room.
        clusters["east"].waiting = 200
        await until(lambda: queues(epp.app) == [200.0, 99.0, 9.0])
        token = {"x-session-token": "ZGVmYXVsdC9lYXN0"}  # base64 of default/east
        assert (await epp.post(headers=token)).server == "gateway.east.example.com:443"


async def test_a_prompt_follows_its_prefix_to_a_cluster(tmp_path: Path) -> None:
    clusters = {name: ClusterEpp() for name in ("a", "b", "c", "d")}
    async with choosing(tmp_path, PREFIX, clusters) as epp:
        # Once in 4**15 trials by chance.
        assert len({(await epp.post(LONG)).server for _ in range(16)}) == 1


def test_scorers_without_the_extractor_are_refused() -> None:
    text = HEAD + "plugins: [{type: multicluster-queue-scorer}]\n"
    wanted = re.escape("reads `llm-d.ai/multicluster-queue-size/`, which no plugin produces")
    with pytest.raises(ConfigError, match=wanted):
        App(ServeSettings(config=load_text(text, "test")))
