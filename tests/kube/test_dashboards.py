"""The dashboards in a cluster: ConfigMaps of the Helm chart and of Kustomize."""

import asyncio
import subprocess
from typing import Any

import pytest
from kube.charts import program, render

from tools.chart.helm import Document, Helm, documents, of_kind
from tools.dashboards.__main__ import FOLDER, files
from tools.harness.kube.manifests import Manifests

TEXTS = {f"endpoint-picker-{name}": text for name, text in files().items() if "json" in name}


def dashboards(objects: list[Document]) -> list[Document]:
    return [
        each
        for each in objects
        if each["kind"] == "ConfigMap" and "grafana_dashboard" in each["metadata"].get("labels", {})
    ]


def with_dashboards(**more: Any) -> dict[str, Any]:
    return {"monitoring": {"grafana": {"dashboards": {"enabled": True, **more}}}}


async def test_helm_makes_a_config_map_for_each(helm: Helm, manifests: Manifests) -> None:
    objects = render(helm, router=with_dashboards(annotations={"grafana_folder": "Inference"}))
    found = dashboards(objects)
    assert {name: text for each in found for name, text in each["data"].items()} == TEXTS
    for each in found:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Inference"}
        assert each["metadata"]["name"].startswith("llama-epp-dashboard-")
    await manifests.check(objects)


def test_helm_makes_none_unless_asked(helm: Helm) -> None:
    assert dashboards(render(helm)) == []


def built() -> list[Document]:
    done = subprocess.run(
        [program("kustomize"), "build", FOLDER], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


async def test_kustomize_makes_the_same(manifests: Manifests) -> None:
    objects = await asyncio.to_thread(built)
    found = dashboards(objects)
    assert len(found) == len(objects)
    assert {name: text for each in found for name, text in each["data"].items()} == TEXTS
    await manifests.check(
        [{**each, "metadata": {**each["metadata"], "namespace": "default"}} for each in found]
    )


@pytest.mark.parametrize(
    ("rules", "begins"),
    [
        pytest.param({}, "docs/troubleshooting.md#", id="by default"),
        pytest.param(
            {"runbookUrl": "https://wiki.example/epp"}, "https://wiki.example/epp#", id="given"
        ),
    ],
)
def test_alerts_link_to_the_runbooks(helm: Helm, rules: dict[str, str], begins: str) -> None:
    monitoring = {"prometheus": {"enabled": True, "rules": {"enabled": True, **rules}}}
    rule = of_kind(render(helm, router={"monitoring": monitoring}), "PrometheusRule")
    for each in rule["spec"]["groups"][0]["rules"]:
        assert each["annotations"]["runbook_url"] == begins + each["alert"].lower()
