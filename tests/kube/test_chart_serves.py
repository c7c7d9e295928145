"""A release of the chart serves: its objects are created, its containers run as processes."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import yaml
from kube.charts import containers
from kube.pickers import LABELS, pod_of, pod_servers
from kube.processes import (
    Process,
    Processes,
    account_of,
    install_release,
    option,
    processes,
    serves,
    until_async,
)

from epp.lab.envoy import EnvoyProcess, GatewayConfig
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import LISTENER
from epp.lab.fleet import FakeServer
from tools.chart.helm import Helm, of_kind
from tools.chart.paths import CHART
from tools.harness.kube.access import path_rule, until_granted
from tools.harness.kube.manifests import Manifests
from tools.harness.kube.objects import Namespace
from tools.harness.kube.server import ApiServer
from tools.harness.ports import free_ports

CONFIGURATION = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: prefix-cache-scorer
"""


def ask(model: str = "tiny") -> dict[str, Any]:
    return {"model": model, "prompt": "Hello", "max_tokens": 2}


@asynccontextmanager
async def serving(
    objects: list[dict[str, Any]],
    health_port: int,
    namespace: Namespace,
    manifests: Manifests,
    api_server: ApiServer,
) -> AsyncIterator[tuple[Processes, Process]]:
    """Create a release and two pods; run its endpoint picker, which is ready within the block."""
    account = await install_release(objects, namespace, manifests)
    await namespace.create_pods(pod_of(0), pod_of(1))
    token = api_server.tokens.issue(account)
    async with processes(objects, namespace, api_server, token) as pod:
        picker = await pod.picker()
        await until_async(lambda: serves(health_port, "readiness"), picker)
        yield pod, picker


async def test_behind_a_gateway_with_the_values_of_the_go_epp(
    helm: Helm,
    api_server: ApiServer,
    namespace: Namespace,
    manifests: Manifests,
) -> None:
    grpc_port, health_port, metrics_port = free_ports(3)
    async with pod_servers(2) as servers:
        values = {
            "router": {
                "metricsPort": metrics_port,
                "epp": {
                    "replicas": 2,
                    "image": {"registry": "ghcr.io/llm-d", "tag": "v0.10.0"},
                    "extProcPort": grpc_port,
                    "grpcHealthPort": health_port,
                    "flags": {"v": 4, "allow-experimental-plugins": True},
                    "pluginsConfigFile": "custom-plugins.yaml",
                    "pluginsCustomConfig": {"custom-plugins.yaml": CONFIGURATION},
                },
                "monitoring": {"prometheus": {"enabled": True}},
                "inferenceObjectives": [{"name": "chat", "priority": 5}],
                "modelServers": {
                    "matchLabels": LABELS,
                    "targetPorts": [{"number": servers[0].port}],
                },
            },
        }
        objects = helm.render(values, namespace=namespace.name)
        async with serving(objects, health_port, namespace, manifests, api_server):
            responses = await responses_behind_envoy(servers, grpc_port)
            assert {each.status_code for each in responses} == {200}
            await metrics_are_for_the_reader(namespace, api_server, metrics_port, objects)


async def responses_behind_envoy(
    servers: Sequence[FakeServer], grpc_port: int
) -> list[httpx.Response]:
    """Send requests through an Envoy that reaches the endpoint picker as Istio's gateway does."""
    config = GatewayConfig(
        endpoints=tuple(server.address for server in servers),
        listen_port=0,
        epp_port=grpc_port,
        epp_tls=True,
    )
    async with EnvoyProcess(json.dumps(bootstrap(config))) as envoy:
        host, port = await envoy.listener_address(LISTENER)
        url = f"http://{host}:{port}/v1/completions"
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            headers = {"x-llm-d-inference-objective": "chat"}
            return [await client.post(url, json=ask(), headers=headers) for _ in range(4)]


async def metrics_are_for_the_reader(
    namespace: Namespace, api_server: ApiServer, port: int, objects: list[dict[str, Any]]
) -> None:
    """The account whose token Prometheus shows may read; the page has what the alerts ask for."""
    secret = of_kind(objects, "Secret")
    name = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    reader = await account_of(namespace, name)
    await until_granted(namespace, reader, [path_rule("/metrics")], "")
    monitor = of_kind(objects, "ServiceMonitor")["spec"]["endpoints"][0]
    assert monitor["authorization"]["credentials"]["name"] == secret["metadata"]["name"]
    async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/metrics")).status_code == 401
        headers = {"authorization": f"Bearer {api_server.tokens.issue(reader)}"}
        page = await client.get("/metrics", headers=headers)
        assert (await client.get("/debug/kubernetes", headers=headers)).status_code == 403
    known = set(re.findall(r"^# TYPE (\S+)", page.text, re.M))
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    wanted = set(re.findall(r'(\w+)\{job="epp"', json.dumps(rules).replace('\\"', '"'))) - {"up"}
    assert len(wanted) > 10
    assert wanted <= known
    assert 'leader_election_master_status{name="epp-' in page.text


async def test_standalone_with_its_own_envoy(
    helm: Helm,
    api_server: ApiServer,
    namespace: Namespace,
    manifests: Manifests,
) -> None:
    health_port, metrics_port = free_ports(2)
    async with pod_servers(2) as servers:
        values = {
            "mode": "standalone",
            "router": {
                "metricsPort": metrics_port,
                "epp": {"grpcHealthPort": health_port},
                "inferencePool": {"create": False},
                "modelServers": {
                    "matchLabels": LABELS,
                    "targetPorts": [{"number": servers[0].port}],
                },
            },
        }
        objects = helm.render(values, namespace=namespace.name)
        async with serving(objects, health_port, namespace, manifests, api_server) as (pod, picker):
            url = await pod.envoy()
            async with httpx.AsyncClient(trust_env=False, base_url=url, timeout=20) as client:
                responses = [await client.post("/v1/completions", json=ask()) for _ in range(4)]
            assert {each.status_code for each in responses} == {200}
            words = containers(objects)["epp"]["args"]
            assert option(words, "--endpoint-selector") == "app=vllm"
            assert await picker.terminate() == 0
