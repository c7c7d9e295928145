"""The chart's objects for each values file, as helm renders them and the API server sees them."""

import pytest
from kube.charts import MINIMAL, VALUES, containers, values_of
from typer.main import get_command

from epp.building import make_builder
from epp.cli import cli
from epp.config import load_text
from tools.chart.helm import Helm, of_kind
from tools.chart.paths import CHART
from tools.harness.kube.errors import RefusedError
from tools.harness.kube.manifests import Manifests

each_file = pytest.mark.parametrize("name", sorted(path.stem for path in VALUES.glob("*.yaml")))


@each_file
async def test_the_api_server_accepts_the_objects(
    helm: Helm, manifests: Manifests, name: str
) -> None:
    objects = helm.render(values_of(name))
    await manifests.check(objects)
    keys = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(keys)) == len(keys)


async def test_the_api_server_would_refuse_a_field_that_it_does_not_know(
    helm: Helm, manifests: Manifests
) -> None:
    service = of_kind(helm.render(MINIMAL), "Service")
    service["spec"]["portz"] = []
    with pytest.raises(RefusedError, match=r'unknown field "spec\.portz"'):
        await manifests.check([service])


@each_file
def test_helm_lints_it(helm: Helm, name: str) -> None:
    assert "0 chart(s) failed" in helm.run("lint", str(CHART), values=values_of(name))


@each_file
def test_epp_serve_takes_the_arguments(
    helm: Helm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    picker = containers(helm.render(values_of(name)))["epp"]
    assert "command" not in picker, "the image's entry point is epp serve"
    monkeypatch.setenv("NAMESPACE", "default")
    serve = get_command(cli).commands["serve"]  # type: ignore[attr-defined]
    with serve.make_context("epp serve", list(picker["args"])) as context:
        taken = context.params
    ports = {each["name"]: each["containerPort"] for each in picker["ports"]}
    assert (ports["grpc-health"], ports["metrics"]) == (
        taken["grpc_health_port"],
        taken["metrics_port"],
    )
    assert ports.get("grpc") == (None if taken["listen"] else taken["grpc_port"])
    probes = {kind: picker[f"{kind}Probe"]["grpc"] for kind in ("startup", "liveness", "readiness")}
    assert {each["port"] for each in probes.values()} == {taken["grpc_health_port"]}


@each_file
def test_the_configuration_can_be_loaded(helm: Helm, name: str) -> None:
    objects = helm.render(values_of(name))
    (argument,) = (
        each
        for each in containers(objects)["epp"]["args"]
        if each.startswith("--config-file=/config/")
    )
    texts = of_kind(objects, "ConfigMap", "llama-epp")["data"]
    for file in {argument.removeprefix("--config-file=/config/"), "default-plugins.yaml"}:
        make_builder(0).build(load_text(texts[file], file))


@each_file
def test_pods_run_without_root_and_with_no_more_than_they_need(helm: Helm, name: str) -> None:
    objects = helm.render(values_of(name))
    spec = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container, each in containers(objects).items():
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        if container != "vllm-render":
            assert each["securityContext"]["readOnlyRootFilesystem"] is True
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert each["resources"]["requests"].keys() >= {"cpu", "memory"}
    volumes = {each["name"] for each in spec["volumes"]}
    mounted = {
        mount["name"] for each in containers(objects).values() for mount in each["volumeMounts"]
    }
    assert mounted <= volumes


@each_file
def test_the_service_finds_the_pods(helm: Helm, name: str) -> None:
    objects = helm.render(values_of(name))
    deployment = of_kind(objects, "Deployment")["spec"]
    service = of_kind(objects, "Service", "llama-epp")["spec"]
    assert service["selector"] == deployment["selector"]["matchLabels"]
    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    listening = {
        port.get("name"): port["containerPort"]
        for each in containers(objects).values()
        for port in each.get("ports", [])
    }
    for port in service["ports"]:
        target = port.get("targetPort", port["port"])
        assert target in listening or target in listening.values()
