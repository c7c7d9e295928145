"""The objects of deploy/envoy for Envoy Gateway and Istio, validated by the API server."""

from dataclasses import replace

import pytest
import yaml
from doc_commands import blocks_of

from epp.lab.envoy import CheckedHosts
from epp.lab.envoy.samples import SNIPPETS, render
from tools.chart.paths import ROOT
from tools.harness.kube.errors import RefusedError
from tools.harness.kube.manifests import Manifests

ENVOY = ROOT / "deploy" / "envoy"


@pytest.mark.parametrize("name", sorted(SNIPPETS))
async def test_the_api_server_accepts_the_objects_and_no_misspelt_field(
    manifests: Manifests, name: str
) -> None:
    objects = list(yaml.safe_load_all((ENVOY / name).read_text()))
    await manifests.check(objects)
    for each in objects:
        each["spec"]["misspelt"] = 1
        with pytest.raises(RefusedError, match=r'unknown field "spec\.misspelt"'):
            await manifests.check([each])


@pytest.mark.parametrize("name", sorted(SNIPPETS))
async def test_the_api_server_accepts_the_objects_with_a_health_check(
    manifests: Manifests, name: str
) -> None:
    product, config = SNIPPETS[name]
    checks = frozenset({CheckedHosts.ENDPOINT_PICKER})
    await manifests.check(
        yaml.safe_load_all(render(product, replace(config, health_checks=checks)))
    )


async def test_the_api_server_accepts_the_objects_for_agentgateway(manifests: Manifests) -> None:
    blocks = [text for _, text in blocks_of(ROOT / "docs" / "envoy.md") if "agentgateway" in text]
    assert len(blocks) == 1
    objects = list(yaml.safe_load_all(blocks[0]))
    assert [each["kind"] for each in objects] == ["Gateway", "HTTPRoute", "InferencePool"]
    await manifests.check(objects)
