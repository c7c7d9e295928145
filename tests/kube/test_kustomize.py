"""deploy/kustomize is made from the chart, and kustomize builds the same objects as helm."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.charts import program

from tools.chart.helm import Document, Helm, documents
from tools.chart.kustomize import BASE, COMPONENTS, files, merged, read, rendered
from tools.chart.paths import KUSTOMIZE
from tools.harness.kube.manifests import Manifests

NAMES = ("base", *(f"overlays/{name}" for name in COMPONENTS))


def build(folder: Path) -> list[Document]:
    done = subprocess.run(
        [program("kustomize"), "build", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def by_key(objects: Sequence[Document]) -> dict[tuple[str, str], Document]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def values_of(name: str) -> dict[str, Any]:
    return merged(BASE, COMPONENTS[name][1])


def test_the_files_are_current(helm: Helm) -> None:
    assert read() == files(helm), "run make kustomize"


@pytest.mark.parametrize("name", COMPONENTS)
def test_an_overlay_is_what_helm_renders(helm: Helm, name: str) -> None:
    built = by_key(build(KUSTOMIZE / "overlays" / name))
    assert built == by_key(rendered(helm, values_of(name)))


@pytest.mark.parametrize("name", NAMES)
async def test_the_api_server_accepts_an_overlay(manifests: Manifests, name: str) -> None:
    await manifests.check(build(KUSTOMIZE / name))


def test_an_overlay_of_ones_own_combines_components_in_another_namespace(
    helm: Helm, tmp_path: Path
) -> None:
    names = ("istio", "monitoring", "network-policy", "all-serve")
    shutil.copytree(KUSTOMIZE, tmp_path / "kustomize")
    kustomization = {
        "namespace": "serving",
        "resources": ["kustomize/base"],
        "components": [f"kustomize/components/{name}" for name in names],
        "images": [{"name": "endpoint-picker", "newName": "registry.example/epp", "newTag": "1"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    built = by_key(build(tmp_path))
    values = BASE
    for name in names:
        values = merged(values, COMPONENTS[name][1])
    expected = by_key(rendered(helm, values))
    assert built.keys() == expected.keys()
    namespaces = {each["metadata"].get("namespace") for each in built.values()}
    assert namespaces == {"serving", None}
    assert all(
        subject["namespace"] == "serving"
        for each in built.values()
        for subject in each.get("subjects", ())
    )
    (container,) = built["Deployment", "llm-epp"]["spec"]["template"]["spec"]["containers"]
    (rendered_container,) = expected["Deployment", "llm-epp"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert container == {**rendered_container, "image": "registry.example/epp:1"}
