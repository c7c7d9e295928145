"""The objects of deploy/envoy for Envoy Gateway and Istio, judged by the API server."""

import pytest
import yaml

from epp.lab.envoy.samples import SNIPPETS
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
