"""Requests that wait while a pool is deleted and created again."""

import asyncio
from pathlib import Path

import httpx
import pytest
from kube.pickers import LABELS, cluster_picker, gateway, pod_of, pod_servers, pool

from epp.config import load_text
from tools.harness.gateway import until
from tools.harness.kube.crds import POOL
from tools.harness.kube.objects import Namespace
from tools.harness.kube.server import ApiServer

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector}
- {type: queue-scorer}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  noEndpointRequestTTL: 30s
"""


async def test_requests_wait_for_a_pool_that_is_made_anew_and_keep_their_priority(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    async with (
        pod_servers(1, time_scale=0.02) as servers,
        cluster_picker(
            api_server,
            monkeypatch,
            tmp_path,
            pool(namespace),
            config=load_text(CONFIG, "test"),
        ) as picker,
        gateway(picker, servers) as url,
        httpx.AsyncClient(timeout=40.0, trust_env=False) as client,
    ):
        await namespace.create_objective("urgent", "pool", 7)
        await namespace.create_pool("pool", LABELS, [servers[0].port])
        await namespace.create_pods(pod_of(0))
        await until(lambda: len(picker.app.pool.store.snapshot) == 1)
        await until(lambda: picker.app.pool.objects.priority_of("urgent") == 7)
        await namespace.admin.delete(namespace.path(POOL, "pool"))
        await until(lambda: not picker.app.pool.store.snapshot)
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4}
        headers = {"x-llm-d-inference-objective": "urgent"}
        waiting = [
            asyncio.create_task(client.post(f"{url}/v1/completions", json=body, headers=headers))
            for _ in range(4)
        ]
        await until(lambda: picker.app.pool.flow.waiting == 4)
        await namespace.create_pool("pool", LABELS, [servers[0].port])
        responses = await asyncio.gather(*waiting)
        assert {response.status_code for response in responses} == {200}
        metrics = (await client.get(f"http://127.0.0.1:{picker.ports.metrics}/metrics")).text
        counted = [
            line
            for line in metrics.splitlines()
            if line.startswith("llm_d_epp_request_total") and 'priority="7"' in line
        ]
        assert [line.rpartition(" ")[2] for line in counted] == ["4.0"]
