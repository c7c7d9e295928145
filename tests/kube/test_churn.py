"""Pods come, change and go under load, behind a real Envoy."""

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
import pytest
from kube.pickers import LABELS, address, cluster_picker, gateway, pod_servers, pool

from tools.harness.gateway import Picker, until
from tools.harness.kube.objects import Namespace, Pod, pod_status
from tools.harness.kube.server import ApiServer

SECONDS = float(os.environ.get("CHURN_SECONDS", "8"))
PODS, SERVERS, WORKERS, CLIENTS = 200, 60, 4, 4
USUAL_SECONDS = 1.0
"""Half of the changes are to be applied within this time; on a busy machine, others take longer."""


@dataclass
class Churn:
    """Changes pods at random, and knows which servers are endpoints."""

    namespace: Namespace
    picker: Picker
    port: int
    rng: random.Random
    pods: dict[str, Pod] = field(default_factory=dict)
    delays: list[float] = field(default_factory=list)
    """Seconds from the beginning of a change, a call to the API server, until the pool had it."""
    left_at: dict[str, float] = field(default_factory=dict)
    """When the pool last lost an address, by address."""
    free: list[str] = field(default_factory=list)
    made: int = 0

    def expected(self) -> set[str]:
        """Return the addresses of the endpoints as the pods are now."""
        return {
            f"{pod.ip}:{self.port}"
            for pod in self.pods.values()
            if pod.ready and pod.ip and pod.labels == LABELS
        }

    async def run(self, deadline: float) -> None:
        """Change one pod after the other."""
        while time.monotonic() < deadline:
            await self._step()

    async def _step(self) -> None:
        names = sorted(self.pods)
        if self.free and (self.made < PODS or not names) and self.rng.random() < 0.5:
            await self._create()
            return
        if not names:
            return
        name = self.rng.choice(names)
        pod = self.pods.pop(name)  # no other worker changes it meanwhile
        self.left_at.pop(f"{pod.ip}:{self.port}", None)  # it may leave before the server answers
        kind = self.rng.choice(["delete", "unready", "ready", "relabel", "new address"])
        if kind == "delete":
            began = time.monotonic()
            await self.namespace.delete_pods(name)
            await self._left(pod.ip, began)
            self.free.append(pod.ip)
            return
        began = time.monotonic()
        ip, ready, labels = pod.ip, pod.ready, dict(pod.labels)
        if kind == "relabel":
            labels = {"app": "web" if labels == LABELS else "vllm"}
            await self.namespace.patch_pods({name: {"metadata": {"labels": labels}}})
        else:
            ready = kind != "unready"
            if kind == "new address" and self.free:
                ip = self.free.pop(0)
                self.left_at.pop(f"{ip}:{self.port}", None)
            await self.namespace.patch_pods({name: pod_status(ip=ip, ready=ready)})
        is_endpoint = ready and labels == LABELS
        if ip != pod.ip or not is_endpoint:
            await self._left(pod.ip, began)
        if ip != pod.ip:
            self.free.append(pod.ip)
        if is_endpoint:
            await self._joined(ip, began)
        self.pods[name] = Pod(name=name, labels=labels, ip=ip, ready=ready)

    async def _create(self) -> None:
        self.made += 1
        self.left_at.pop(f"{self.free[0]}:{self.port}", None)
        pod = Pod(name=f"vllm-{self.made}", labels=LABELS, ip=self.free.pop(0))
        began = time.monotonic()
        await self.namespace.create_pods(pod)
        await self._joined(pod.ip, began)
        self.pods[pod.name] = pod

    async def _joined(self, ip: str, began: float) -> None:
        await until(lambda: self._has(ip))
        self.delays.append(time.monotonic() - began)

    async def _left(self, ip: str, began: float) -> None:
        await until(lambda: not self._has(ip))
        self.left_at[f"{ip}:{self.port}"] = time.monotonic()
        self.delays.append(time.monotonic() - began)

    def _has(self, ip: str) -> bool:
        return self.picker.app.pool.store.find_address(f"{ip}:{self.port}") is not None


@dataclass
class Load:
    """Clients that send one request after the other."""

    url: str
    addresses: dict[str, str]
    """Addresses of servers by name."""
    churn: Churn
    statuses: list[int] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Requests that went to a server after it had left."""

    async def run(self, deadline: float) -> None:
        async with httpx.AsyncClient(timeout=15.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                body = {
                    "model": "tiny",
                    "prompt": f"{self.churn.rng.random()} {'x' * 50}",
                    "max_tokens": 4,
                }
                sent_at = time.monotonic()
                response = await client.post(f"{self.url}/v1/completions", json=body)
                self.statuses.append(response.status_code)
                server = self.addresses.get(response.headers.get("x-served-by", ""), "")
                left = self.churn.left_at.get(server)
                is_endpoint = self.churn.picker.app.pool.store.find_address(server) is not None
                if left is not None and sent_at > left and not is_endpoint:
                    self.late.append(server)


async def test_changes_are_applied_at_once_and_no_request_fails(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with (
        pod_servers(SERVERS, time_scale=0.02) as servers,
        cluster_picker(api_server, monkeypatch, tmp_path, pool(namespace)) as picker,
        gateway(picker, servers) as url,
    ):
        port = servers[0].port
        await namespace.create_pool("pool", LABELS, [port])
        addresses = [address(number) for number in range(SERVERS)]
        fixed = Pod(name="fixed", labels=LABELS, ip=addresses.pop())
        await namespace.create_pods(fixed)
        await until(lambda: len(picker.app.pool.store.snapshot) == 1)
        churn = Churn(namespace, picker, port, random.Random(1), free=addresses)
        by_name = {server.name: server.address for server in servers}
        load = Load(url, by_name, churn)
        deadline = time.monotonic() + SECONDS
        await asyncio.gather(
            *(churn.run(deadline) for _ in range(WORKERS)),
            *(load.run(deadline) for _ in range(CLIENTS)),
        )
        churn.pods[fixed.name] = fixed
        endpoints = {endpoint.address for endpoint in picker.app.pool.store.snapshot}
        assert endpoints == churn.expected()
        with capsys.disabled():
            print(
                f"\n{len(churn.delays)} changes of {churn.made} pods: applied after"
                f" {median(churn.delays) * 1e3:.1f} ms (median), {max(churn.delays) * 1e3:.0f} ms"
                f" (most); {len(load.statuses)} requests"
            )
        assert set(load.statuses) == {200}
        assert load.late == []
        assert median(churn.delays) < USUAL_SECONDS
        assert len(churn.delays) > 20
