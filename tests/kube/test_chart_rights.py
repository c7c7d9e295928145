"""The chart's roles have exactly the rights that a run needs, by the API server's audit log."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from kube.charts import MINIMAL
from kube.pickers import LABELS, pod_of, pod_servers
from kube.processes import account_of, install_release, processes, serves, until_async

from tools.chart.helm import Document, Helm, of_kind
from tools.chart.kustomize import merged
from tools.harness.kube.access import path_rule, until_granted
from tools.harness.kube.audit import AuditLog, Right, granted
from tools.harness.kube.crds import (
    LEGACY_OBJECTIVE,
    LEGACY_REWRITE,
    LLM_D_GROUP,
    REWRITE,
    definitions,
)
from tools.harness.kube.manifests import Manifests
from tools.harness.kube.objects import create_namespace, install
from tools.harness.kube.server import ApiServer
from tools.harness.ports import free_ports
from tools.kube.build import SERVERS, find

LEASE = Right("coordination.k8s.io", "leases", "get")


@dataclass(slots=True)
class Rights:
    """What the roles of releases allow, and what their endpoint pickers did."""

    granted: set[Right] = field(default_factory=set)
    used: set[Right] = field(default_factory=set)
    refused: set[Right] = field(default_factory=set)


async def run(
    helm: Helm,
    folder: Path,
    rights: Rights,
    *,
    values: dict[str, Any],
    kinds: Sequence[Document],
    lists: bool,
) -> None:
    """Run two replicas of a release until the second one leads; add up the rights.

    Args:
        helm: Renders the release.
        folder: For the audit log.
        rights: What is added to.
        values: Values of the release.
        kinds: Definitions of the custom resources in the cluster.
        lists: Whether watches cannot begin with the present state, as before Kubernetes 1.32.
    """
    assets = find(SERVERS)
    assert assets, "kube-apiserver and etcd are missing: make test-kube builds them"
    log = AuditLog(folder)
    flags = [*log.flags, *(["--feature-gates=WatchList=false"] if lists else [])]
    first, second = free_ports(3), free_ports(3)
    async with AsyncExitStack() as stack:
        api_server = stack.enter_context(ApiServer(assets, flags))
        admin = await stack.enter_async_context(api_server.client())
        await install(admin, kinds)
        namespace = await create_namespace(admin)
        servers = await stack.enter_async_context(pod_servers(1))
        served = {each["spec"]["group"] for each in kinds}
        is_older = LLM_D_GROUP not in served
        objects = helm.render(
            merged(with_ports(values, *first), targets(servers[0].port)),
            # What helm finds out itself where it installs.
            *(("--api-versions", f"{LEGACY_OBJECTIVE.api_version}/InferenceObjective") * is_older),
            namespace=namespace.name,
        )
        monitors = [each for each in objects if each["kind"] == "ServiceMonitor"]
        objects = [each for each in objects if each not in monitors]
        account = await install_release(objects, namespace, Manifests(admin))
        await namespace.create_pods(pod_of(0))
        kind = LEGACY_REWRITE if is_older else REWRITE
        group = of_kind(objects, "InferencePool")["apiVersion"].partition("/")[0]
        rewrite = {
            "poolRef": {"group": group, "name": "llama"},
            "rules": [{"targets": [{"modelRewrite": "tiny"}]}],
        }
        await namespace.create(kind, "chat", rewrite)
        token = api_server.tokens.issue(account)
        pod = await stack.enter_async_context(processes(objects, namespace, api_server, token))
        leader = await pod.picker()
        await until_async(lambda: serves(first[1], "readiness"), leader)
        names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
        other = [f"{name}={port}" for name, port in zip(names, second, strict=True)]
        standby = await pod.picker(*other)
        await metrics_are_read(namespace, api_server, first[2])
        assert await leader.terminate() == 0
        await until_async(lambda: serves(second[1], "readiness"), standby)
        roles = [each for each in objects if each["kind"] in {"Role", "ClusterRole"}]
        rights.granted |= granted(
            rule
            for role in roles
            if "metrics-reader" not in role["metadata"]["name"]
            for rule in role["rules"]
        )
        wrote = {
            Right("", "events", "create"),
            *(
                Right(kind.group, f"{plural}/status", "patch")
                for plural in ("inferenceobjectives", "inferencemodelrewrites")
            ),
        }
        await until_async(lambda: has_used(log, account.user, wrote), standby)
        rights.used |= log.used([account.user])
        rights.refused |= log.refused([account.user])


async def has_used(log: AuditLog, user: str, rights: set[Right]) -> bool:
    return rights <= log.used([user])


def with_ports(values: dict[str, Any], grpc: int, health: int, metrics: int) -> dict[str, Any]:
    ports = {"metricsPort": metrics, "epp": {"extProcPort": grpc, "grpcHealthPort": health}}
    return merged(values, {"router": ports})


def targets(port: int) -> dict[str, Any]:
    return {"router": {"modelServers": {"matchLabels": LABELS, "targetPorts": [{"number": port}]}}}


async def metrics_are_read(namespace: Any, api_server: ApiServer, port: int) -> None:
    """As Prometheus does, so that the endpoint picker asks about the token."""
    reader = await account_of(namespace, "llama-epp-metrics-reader")
    await until_granted(namespace, reader, [path_rule("/metrics")], "")
    headers = {"authorization": f"Bearer {api_server.tokens.issue(reader)}"}
    async with httpx.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{port}/metrics"
        assert (await client.get(url, headers=headers)).status_code == 200


REPLICAS: dict[str, Any] = {
    "router": {
        "epp": {"replicas": 2, "flags": {"drain-delay-seconds": 0}},
        "inferenceObjectives": [{"name": "chat", "priority": 1}],
        "monitoring": {"prometheus": {"enabled": True}},
    }
}
OLDER = {"router": {"inferencePool": {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}}}


def without(kinds: Sequence[Document], group: str) -> list[Document]:
    return [each for each in kinds if each["spec"]["group"] != group]


@pytest.mark.timeout(180)
async def test_nothing_is_missing_and_nothing_unused(helm: Helm, tmp_path: Path) -> None:
    rights = Rights()
    for index, (values, kinds, lists) in enumerate(
        [
            (REPLICAS, definitions(), False),
            (REPLICAS, definitions(), True),
            # Only the older groups have the kinds.
            (merged(REPLICAS, OLDER), without(definitions(), LLM_D_GROUP), True),
        ]
    ):
        folder = tmp_path / str(index)
        folder.mkdir()
        await run(helm, folder, rights, values=merged(MINIMAL, values), kinds=kinds, lists=lists)
    assert rights.refused == set()
    assert rights.used - rights.granted == set(), "missing"
    assert rights.granted - rights.used == set(), "unused"
    assert LEASE in rights.used
