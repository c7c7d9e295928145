"""`helm upgrade` takes a release from the Go EPP's chart to this one, and `helm rollback` back."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from kube.charts import MINIMAL, containers, values_of

from tools.chart.helm import Document, Helm, HelmError
from tools.chart.paths import CHART
from tools.harness.kube.objects import Namespace, checked

GO_IMAGE = "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.10.0"


def chart_of_the_go_epp(folder: Path, selector: dict[str, str]) -> Path:
    """Write a chart with the names of the Go EPP's objects, as far as they meet this one's."""
    metadata = {"name": "{{ .Release.Name }}-epp", "namespace": "{{ .Release.Namespace }}"}
    subjects = [{"kind": "ServiceAccount", **metadata}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]}
    pod = {
        "serviceAccountName": metadata["name"],
        "terminationGracePeriodSeconds": 130,
        "containers": [
            {
                "name": "epp",
                "image": GO_IMAGE,
                "args": ["--pool-name", "{{ .Release.Name }}", "--zap-encoder", "json"],
                "ports": [{"name": "grpc", "containerPort": 9002}],
                "volumeMounts": [{"name": "plugins-config-volume", "mountPath": "/config"}],
            }
        ],
        "volumes": [
            {"name": "plugins-config-volume", "configMap": {"name": metadata["name"]}},
        ],
    }
    objects: list[Document] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": selector, "ports": [{"name": "grpc-ext-proc", "port": 9002}]},
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "subjects": subjects,
            "roleRef": role,
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": selector}, "spec": pod},
            },
        },
    ]
    (folder / "templates").mkdir(parents=True)
    (folder / "templates" / "all.yaml").write_text(yaml.safe_dump_all(objects, width=1000))
    named = {"apiVersion": "v2", "name": "llm-d-router-gateway", "version": "0.10.0"}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(named))
    (folder / "values.yaml").write_text("{router: {epp: {replicas: 1, image: {tag: v0.10.0}}}}")
    return folder


async def deployment(namespace: Namespace) -> Document:
    path = f"/apis/apps/v1/namespaces/{namespace.name}/deployments/llama-epp"
    return checked(await namespace.admin.get(path))


@pytest.mark.parametrize(
    ("selector", "values"),
    [
        pytest.param(
            {"llm-d-router-gateway": "llama-epp"},
            values_of("router-custom-plugins"),
            id="llm-d-router-gateway",
        ),
        pytest.param({"inferencepool": "llama-epp"}, values_of("legacy-full"), id="inferencepool"),
        pytest.param(
            {"llm-d-router-gateway": "llama-epp"},
            values_of("standalone-minimal"),
            id="llm-d-router-standalone",
        ),
        pytest.param({"app": "epp"}, MINIMAL, id="other labels"),
    ],
)
async def test_a_release_is_upgraded_and_rolled_back(
    cluster_helm: Helm,
    namespace: Namespace,
    tmp_path: Path,
    selector: dict[str, str],
    values: dict[str, Any],
) -> None:
    old = chart_of_the_go_epp(tmp_path / "chart", selector)
    run, where = cluster_helm.run, f"--namespace={namespace.name}"
    run("install", "llama", str(old), where, values=values)
    before = await deployment(namespace)
    output = run("upgrade", "llama", str(CHART), where, values=values)
    assert f"helm -n {namespace.name} rollback llama" in output
    after = await deployment(namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "it was changed, not made anew"
    assert after["spec"]["selector"] == {"matchLabels": selector}
    labels = after["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    picker = containers([{**after, "kind": "Deployment"}])["epp"]
    assert picker["image"] == "endpoint-picker:0.1.0"
    assert "--pool-name=llama" in picker["args"]
    service = checked(await namespace.admin.get(namespace.path("services", "llama-epp")))
    assert service["spec"]["selector"] == selector
    run("rollback", "llama", "1", where)
    back = await deployment(namespace)
    assert back["spec"]["template"]["spec"] == before["spec"]["template"]["spec"]


async def test_values_can_be_taken_over_from_the_release(
    cluster_helm: Helm, namespace: Namespace, admin: httpx.AsyncClient, tmp_path: Path
) -> None:
    old = chart_of_the_go_epp(tmp_path / "chart", {"inferencepool": "llama-epp"})
    run, where = cluster_helm.run, f"--namespace={namespace.name}"
    run("install", "llama", str(old), where, values=values_of("legacy-minimal"))
    with pytest.raises(HelmError, match="use helm upgrade --reset-then-reuse-values"):
        run("upgrade", "llama", str(CHART), where, "--reuse-values")
    run("upgrade", "llama", str(CHART), where, "--reset-then-reuse-values")
    pool = checked(
        await admin.get(
            f"/apis/inference.networking.k8s.io/v1/namespaces/{namespace.name}/inferencepools/llama"
        )
    )
    assert pool["spec"]["selector"] == {"matchLabels": {"app": "vllm-llama3-8b-instruct"}}
