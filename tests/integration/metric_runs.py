"""Runs of a whole gateway in which every metric gets a sample; each returns its metrics pages.

They differ because some options exclude each other: two profile handlers, endpoints of an API
server and of a list, flow control on and off.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from config.graphs import HEAD
from kubernetes.conftest import write_kubeconfig
from kubernetes.discoveries import VLLM, create_pods
from kubernetes.fake_api import fake_api

from epp.admin import ExplainSettings
from epp.app import ServeSettings
from epp.config import load_text
from epp.kubernetes.source import PodSelection, PodSource
from epp.lab.envoy import Mode
from epp.lab.fleet import Fleet, FleetConfig
from epp.outlier_detection import HealthState, OutlierSettings
from epp.replication import ReplicaSettings
from epp.request_control.force_header import FORCE_HEADER, signed
from epp.tracing import OtlpSettings, TracingSettings
from epp.transport import TlsSettings
from epp.transport.certificate import load_certificate
from tools.harness.gateway import Gateway, Picker, running, serving, until

NO_COLLECTOR: Final = "http://127.0.0.1:9"
"""The discard port: nothing listens there."""

FAULTY: Final = '''\
"""Plugins that fail."""

from collections.abc import Sequence

import msgspec

from epp.flow_control.sessions import Event, ExtensionPoints, SessionPlugin
from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No parameters."""


class Raising(Scorer):
    """Raises an error at each call."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        raise ValueError("no")


class TooHigh(Raising):
    """Gives scores out of range."""

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return [2.0] * len(endpoints)


class Noting(SessionPlugin):
    """Fails when a request is placed."""

    name = "noting"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_event_handler(allocate=self._allocated)

    def _allocated(self, event: Event) -> None:
        raise ValueError("no")
'''
FAULTY_CONFIG: Final = HEAD + (
    "plugins:\n"
    "- {type: queue-scorer}\n"
    "- {type: prefix-cache-scorer}\n"
    "- {type: max-score-picker}\n"
    "- {type: random-picker}\n"
    "- {type: 'file:faulty.py:Raising'}\n"
    "- {type: 'file:faulty.py:TooHigh'}\n"
    "schedulingProfiles:\n"
    "- name: default\n"
    "  plugins:\n"
    "  - {pluginRef: queue-scorer}\n"
    "  - {pluginRef: prefix-cache-scorer}\n"
    "  - {pluginRef: 'file:faulty.py:Raising'}\n"
    "  - {pluginRef: 'file:faulty.py:TooHigh', weight: 0}\n"
    "  - {pluginRef: max-score-picker}\n"
    "- {name: candidate, plugins: [{pluginRef: random-picker}]}\n"
    "extensions:\n"
    "  shadow: [{profile: candidate, budgetMs: 1000}]\n"
    "  guardRails: {disableAfter: 3}\n"
)
REWRITE: Final = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: renamed}
spec:
  poolRef: {name: default}
  rules:
  - matches: [{model: {value: old}}]
    targets: [{modelRewrite: tiny}]
"""
BATCH: Final = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1, poolRef: {name: default}}
"""
PREDICTING_CONFIG: Final = HEAD + (
    "plugins: [{type: predicted-time-producer}, {type: predicted-time-scorer}]\n"
    "schedulingProfiles: [{name: default, plugins: [{pluginRef: predicted-time-scorer}]}]\n"
)
CROWDED_CONFIG: Final = HEAD + (
    "featureGates: [flowControl]\n"
    "plugins:\n"
    "- {type: concurrency-detector, parameters: {maxConcurrency: 2}}\n"
    "- {type: program-aware-fairness}\n"
    "schedulingProfiles: [{name: default, plugins: [{pluginRef: max-score-picker}]}]\n"
    "flowControl:\n"
    "  saturationDetector: {pluginRef: concurrency-detector}\n"
    "  enableEviction: true\n"
    "  maxRequests: 100\n"
    "  maxBytes: 1G\n"
    "  defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}\n"
    "extensions: {sessions: {plugins: {'file:faulty.py:Noting': {}}}}\n"
)
STAGES_CONFIG: Final = HEAD + (
    "featureGates: [flowControl]\n"
    "plugins:\n"
    "- {type: always-disagg-pd-decider}\n"
    "- type: disagg-profile-handler\n"
    "  parameters: {deciders: {prefill: always-disagg-pd-decider}}\n"
    "- {type: prefill-filter}\n"
    "- {type: decode-filter}\n"
    "- {type: queue-scorer}\n"
    "- {type: inflight-load-producer}\n"
    "- {type: token-load-scorer}\n"
    "- {type: mm-embeddings-cache-producer}\n"
    "- {type: mm-embeddings-cache-scorer}\n"
    "- {type: orca-load-metrics-reader}\n"
    "- {type: session-affinity-scorer}\n"
    "- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 20, maxBatchSize: 1}}\n"
    "- type: prefix-cache-scorer\n"
    "  parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}\n"
    "- {type: token-producer, parameters: {modelName: tiny, vllm: {url: 'RENDERER'}}}\n"
    "- type: request-attribute-reporter\n"
    "  parameters: {attributes: [{key: {name: cost}, expression: usage.prompt_tokens}]}\n"
    "schedulingProfiles:\n"
    "- {name: prefill, plugins: [{pluginRef: prefill-filter}]}\n"
    "- name: decode\n"
    "  plugins:\n"
    "  - {pluginRef: decode-filter}\n"
    "  - {pluginRef: queue-scorer}\n"
    "  - {pluginRef: token-load-scorer}\n"
    "  - {pluginRef: mm-embeddings-cache-scorer}\n"
    "  - {pluginRef: session-affinity-scorer}\n"
    "  - {pluginRef: prefix-cache-scorer}\n"
)
FORMER_STAGES_CONFIG: Final = HEAD + (
    "plugins:\n"
    "- {type: always-disagg-pd-decider}\n"
    "- {type: pd-profile-handler, parameters: {deciderPluginName: always-disagg-pd-decider}}\n"
    "- {type: prefill-filter}\n"
    "- {type: decode-filter}\n"
    "- type: disaggregatedset-rollout-screener\n"
    "  parameters:\n"
    "    scope: {labelSelector: app=vllm}\n"
    "    headerSelectors:\n"
    "    - {name: revision, headerName: x-revision, labelKey: revision, mode: strict}\n"
    "    revisionGating: {mode: disabled}\n"
    "schedulingProfiles:\n"
    "- {name: prefill, plugins: [{pluginRef: prefill-filter}]}\n"
    "- {name: decode, plugins: [{pluginRef: decode-filter}]}\n"
)
ROLLOUT_CONFIG: Final = HEAD + (
    "plugins:\n"
    "- type: disaggregatedset-rollout-screener\n"
    "  parameters:\n"
    "    scope: {labelSelector: app=vllm}\n"
    "    revisionGating:\n"
    "      {mode: sum, revisionLabelKey: revision, roleLabelKey: role,"
    " requireRoles: {values: [decode]}}\n"
)
IMAGE: Final = {
    "role": "user",
    "content": [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "http://images/one.png"}},
    ],
}
STREAMED: Final[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}
LEARNED: Final = 80
"""So many streamed requests teach how long a response takes."""
CROWD: Final = 16


async def page(picker: Picker) -> str:
    """Scrape the metrics port."""
    client = await asyncio.to_thread(httpx.AsyncClient, timeout=15.0, trust_env=False)
    async with client:
        response = await client.get(f"http://127.0.0.1:{picker.ports.metrics}/metrics")
    assert response.status_code == 200
    return response.text


def has(picker: Picker, name: str) -> Callable[[], bool]:
    """Return whether a metric has a sample above 0 by now."""

    def holds() -> bool:
        return any(
            sample.name == name and sample.value > 0
            for family in picker.app.metrics.registry.collect()
            for sample in family.samples
        )

    return holds


async def chat(gateway: Gateway, *messages: dict[str, Any], **headers: str) -> httpx.Response:
    """Send a chat completion."""
    document = {"model": "tiny", "messages": messages, "max_tokens": 2}
    return await gateway.client.post(
        f"{gateway.url}/v1/chat/completions", json=document, headers=headers
    )


async def of_faults(folder: Path) -> list[str]:
    """Serve through servers and plugins that fail, without flow control."""
    await asyncio.to_thread((folder / "faulty.py").write_text, FAULTY)
    await asyncio.to_thread((folder / "objects.yaml").write_text, REWRITE)
    await asyncio.to_thread((folder / "key").write_text, "k" * 32)
    config = folder / "config.yaml"
    await asyncio.to_thread(config.write_text, FAULTY_CONFIG)
    async with running(
        Mode.FULL_DUPLEX,
        tls=True,
        fleet=FleetConfig(endpoints=4, time_scale=0.05),
        config=config,
        objects=(folder / "objects.yaml",),
        hedging=True,
        serve={
            "outliers": OutlierSettings(health_check_interval_seconds=0.1),
            "has_stream_metrics": True,
            "has_deprecated_metrics": True,
            "hedging_budget_percent": 100,
            "force_endpoint_key_file": folder / "key",
            "explain": ExplainSettings(explain_file=folder / "decisions.jsonl"),
            "tracing": TracingSettings(exporter="otlp", otlp=OtlpSettings(endpoint=NO_COLLECTOR)),
        },
    ) as gateway:
        for _ in range(LEARNED):
            response = await gateway.completion(**STREAMED)
            assert response.status_code == 200, response.text
        assert (await gateway.completion(model="old")).status_code == 200
        url = f"{gateway.url}/v1/completions"
        assert (await gateway.client.post(url, content=b"{")).status_code == 400
        deep = b'{"model":"tiny","prompt":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
        assert (await gateway.client.post(url, content=deep)).status_code == 400
        forced = {FORCE_HEADER: signed("endpoint-0", int(time.time()) + 60, b"k" * 32)}
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
        response = await gateway.client.post(url, json=body, headers=forced)
        assert response.headers["x-served-by"] == "endpoint-0"
        pages = [await page(gateway)]
        await _hedged(gateway)
        await _retried(gateway)
        await _failing_fast(gateway)
        gateway.fleet.servers[0].faults.garbled_metrics = True
        await until(has(gateway, "llm_d_epp_datalayer_extract_errors_total"))
        await asyncio.to_thread(config.write_text, FAULTY_CONFIG + "\n# reloaded\n")
        await until(has(gateway, "llm_d_epp_config_reloads_total"))
        await gateway.settled()
        return [*pages, await page(gateway)]


async def _prefers(gateway: Gateway) -> int:
    """Return the number of the server that has the prompt: the next requests go there, too."""
    response = await gateway.completion(**STREAMED)
    return int(response.headers["x-served-by"].removeprefix("endpoint-"))


async def _hedged(gateway: Gateway) -> None:
    server = gateway.fleet.servers[await _prefers(gateway)]
    server.faults.hang_generation = True
    assert (await gateway.completion(**STREAMED)).status_code == 200
    server.faults.hang_generation = False
    assert has(gateway, "llm_d_epp_request_hedges_total")()


async def _retried(gateway: Gateway) -> None:
    """A server crashes with requests in flight; Envoy sends them to another one."""
    server = gateway.fleet.servers[await _prefers(gateway)]
    server.faults.hang_generation = True
    asking: list[asyncio.Task[list[httpx.Response]]] = []
    while server.counters.in_flight == 0:
        assert len(asking) < 20, "no request was sent to it"
        asking.append(asyncio.create_task(_crowd(gateway)))
        await until(lambda: server.counters.in_flight > 0 or asking[-1].done())
    await server.refuse()
    for responses in await asyncio.gather(*asking):
        assert {response.status_code for response in responses} == {200}
    await until(has(gateway, "llm_d_epp_endpoint_retries_total"))
    await until(has(gateway, "llm_d_epp_endpoint_ejections_total"))
    server.faults.hang_generation = False
    await server.start()


async def _crowd(gateway: Gateway) -> list[httpx.Response]:
    return await asyncio.gather(*(gateway.completion(max_tokens=20) for _ in range(CROWD)))


async def _failing_fast(gateway: Gateway) -> None:
    server = gateway.fleet.servers[await _prefers(gateway)]
    server.faults.error_status = 500
    outliers = gateway.app.pool.outliers
    assert outliers is not None
    for _ in range(200):
        await gateway.completion()
        if any(
            endpoint.address == server.address and health.state is HealthState.EJECTED
            for endpoint, health in outliers
        ):
            return
    raise AssertionError("the failing server was never ejected")


async def of_a_crowd(folder: Path) -> list[str]:
    """Have requests wait in flow control, and evict others for them."""
    await asyncio.to_thread((folder / "faulty.py").write_text, FAULTY)
    await asyncio.to_thread((folder / "objects.yaml").write_text, BATCH)
    config = folder / "config.yaml"
    await asyncio.to_thread(config.write_text, CROWDED_CONFIG)
    async with running(
        Mode.LEAN,
        fleet=FleetConfig(endpoints=1),
        config=config,
        objects=(folder / "objects.yaml",),
    ) as gateway:
        long = {"model": "tiny", "prompt": "Hello", "max_tokens": 8000}
        batch = {"x-llm-d-inference-objective": "batch"}
        url = f"{gateway.url}/v1/completions"
        asking = [
            asyncio.create_task(gateway.client.post(url, json=long, headers=batch))
            for _ in range(2)
        ]
        await until(lambda: gateway.fleet.servers[0].engine.num_running == len(asking))
        assert (await gateway.completion()).status_code == 200
        await until(has(gateway, "llm_d_epp_flow_control_revocations_total"))
        pages = [await page(gateway)]
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return pages


async def of_stages(folder: Path) -> list[str]:
    """Decide by the plugins that have metrics of their own."""
    async with running(
        Mode.FULL_DUPLEX,
        fleet=FleetConfig(endpoints=2, time_scale=0.05),
        config=lambda fleet: STAGES_CONFIG.replace(
            "RENDERER", f"http://{fleet.servers[0].address}"
        ),
        labels={server: {"llm-d.ai/role": "decode"} for server in (0, 1)},
    ) as gateway:
        token = {"x-session-token": "!"}
        for _ in range(2):
            assert (await chat(gateway, IMAGE, **token)).status_code == 200
        asking = asyncio.create_task(_crowd(gateway))
        await until(has(gateway, "llm_d_epp_inflight_requests"))
        pages = [await page(gateway)]
        assert {response.status_code for response in await asking} == {200}
        await gateway.settled()
        return [*pages, await page(gateway)]


async def of_former_stages(folder: Path) -> list[str]:
    """Decide by the deprecated handler of prefill and decode."""
    async with running(
        fleet=FleetConfig(endpoints=1, time_scale=0.05),
        config=FORMER_STAGES_CONFIG,
        labels={0: {"llm-d.ai/role": "decode"}},
    ) as gateway:
        assert (await gateway.completion()).status_code == 200
        url, body = f"{gateway.url}/v1/completions", {"model": "tiny", "prompt": "Hello"}
        response = await gateway.client.post(url, json=body, headers={"x-revision": "b"})
        assert response.status_code == 503
        return [await page(gateway)]


@asynccontextmanager
async def _alone(**fields: Any) -> AsyncIterator[Picker]:
    """Run an EPP without a gateway."""
    settings = ServeSettings(
        **{"endpoints": (), "config": load_text(HEAD, "test"), **fields},
        allow_experimental_plugins=True,
        host="127.0.0.1",
        grpc_port=0,
        grpc_health_port=0,
        metrics_port=0,
    )
    async with serving(settings) as picker:
        yield picker


def _write_certificate(folder: Path) -> None:
    made = load_certificate(None)
    (folder / "tls.crt").write_bytes(made.chain)
    (folder / "tls.key").write_bytes(made.key)


async def of_predicted_times(folder: Path) -> list[str]:
    """Learn how long a server takes to answer."""
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 2, "stream": True}
    async with running(
        Mode.FULL_DUPLEX,
        fleet=FleetConfig(endpoints=1, time_scale=0.05),
        config=PREDICTING_CONFIG,
    ) as gateway:
        for _ in range(20):
            response = await gateway.client.post(f"{gateway.url}/v1/completions", json=body)
            assert response.status_code == 200
        await until(has(gateway, "llm_d_epp_predicted_time_error_ratio"))
        return [await page(gateway)]


async def of_long_pages(folder: Path) -> list[str]:
    """Scrape servers whose pages are too long, with a certificate in files."""
    await asyncio.to_thread(_write_certificate, folder)
    async with (
        Fleet(FleetConfig(endpoints=1)) as fleet,
        _alone(
            endpoints=fleet.addresses,
            max_scrape_page_bytes=100,
            tls=TlsSettings(certificate_directory=folder),
        ) as picker,
    ):
        await until(has(picker, "llm_d_epp_datalayer_pages_too_large_total"))
        return [await page(picker)]


async def of_replicas(folder: Path) -> list[str]:
    """Share state with another replica, over sockets."""
    shared = f"unix://{folder}/replicas"
    async with (
        Fleet(FleetConfig(endpoints=1)) as fleet,
        _alone(
            endpoints=fleet.addresses,
            replicas=ReplicaSettings(replica_state=shared, replica_name="a"),
        ) as picker,
        _alone(
            endpoints=fleet.addresses,
            replicas=ReplicaSettings(replica_state=shared, replica_name="b"),
        ),
    ):
        await until(has(picker, "llm_d_epp_replica_peer_age_seconds"))
        return [await page(picker)]


async def of_a_cluster(folder: Path) -> list[str]:
    """Take the endpoints from an API server, as the leader of the replicas."""
    async with fake_api() as api:
        create_pods(api, 1, 2, labels={**VLLM, "role": "decode", "revision": "a"})
        file = await asyncio.to_thread(write_kubeconfig, folder / "kubeconfig", api.url)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("KUBECONFIG", str(file))
            async with _alone(
                config=load_text(ROLLOUT_CONFIG, "test"),
                pods=PodSource("d", selection=PodSelection("app=vllm", (8000,))),
                elects_leader=True,
            ) as picker:
                await until(has(picker, "leader_election_master_status"))
                await until(has(picker, "llm_d_epp_disaggregatedset_revision_gating_share"))
                return [await page(picker)]


async def of_workers(folder: Path) -> list[str]:
    """Run two workers without a gateway."""
    ready = folder / "ready"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "serve", "--workers", "2", "--endpoint", "127.0.0.1:9"),
        *("--host", "127.0.0.1", "--secure-serving=false", "--ready-file", str(ready)),
        *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(90):
            while not await asyncio.to_thread(ready.exists):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        port = json.loads(await asyncio.to_thread(ready.read_text))["metrics"]
        async with httpx.AsyncClient(timeout=15.0, trust_env=False) as client:
            return [(await client.get(f"http://127.0.0.1:{port}/metrics")).text]
    finally:
        process.terminate()
        await process.wait()


Run = Callable[[Path], Awaitable[list[str]]]
"""Returns the pages of a run, which may write to the folder."""
RUNS: Final[tuple[Run, ...]] = (
    of_faults,
    of_a_crowd,
    of_stages,
    of_former_stages,
    of_predicted_times,
    of_long_pages,
    of_replicas,
    of_a_cluster,
    of_workers,
)
