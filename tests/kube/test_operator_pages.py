"""The helm commands in the pages for operators: rendered, and checked by a real API server."""

import re
import shlex
from typing import Any

import pytest
import yaml
from doc_commands import ROOT, blocks_of
from kube.charts import VALUES, containers

from tools.chart.helm import Document, Helm, documents, of_kind
from tools.chart.paths import CHART
from tools.harness.kube.manifests import Manifests

PAGES = ("kubernetes-quickstart", "high-availability", "upgrades", "migrating")
SERVERS = ROOT / "deploy" / "quickstart" / "vllm.yaml"
OF_THE_READER = VALUES / "router-guide.yaml"
"""Stands for the values file that the reader has."""


def helm_commands(page: str) -> list[str]:
    """Return the commands of a page that make or change a release."""
    texts = (text for kind, text in blocks_of(ROOT / "docs" / f"{page}.md") if kind == "sh")
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"helm (install|upgrade) ", line)]


COMMANDS = [
    pytest.param(line, id=f"{page} {number}")
    for page in PAGES
    for number, line in enumerate(helm_commands(page))
]
RELEASE = ["--set", "router.modelServers.matchLabels.app=vllm"]
"""What a release that is upgraded was installed with."""


def rendered(helm: Helm, command: str) -> list[Document]:
    """Return the objects of the release that a command makes or changes, in another namespace."""
    words = shlex.split(command)
    assert words[3] == str(CHART.relative_to(ROOT))
    arguments = [each for each in words[4:] if each != "--reset-then-reuse-values"]
    if len(arguments) != len(words) - 4:
        arguments += RELEASE
    replaced = {"my-values.yaml": str(OF_THE_READER), "serving": "default"}
    arguments = [replaced.get(each, each) for each in arguments]
    return documents(helm.run("template", words[2], str(CHART), *arguments))


def options_of(objects: list[Document]) -> list[str]:
    found: list[str] = containers(objects)["epp"]["args"]
    return found


@pytest.mark.parametrize("command", COMMANDS)
async def test_the_release_of_a_command_is_valid(
    helm: Helm, manifests: Manifests, command: str
) -> None:
    await manifests.check(rendered(helm, command))


async def test_the_model_servers_are_valid_and_those_that_both_releases_select(
    helm: Helm, manifests: Manifests
) -> None:
    servers: list[dict[str, Any]] = list(yaml.safe_load_all(SERVERS.read_text()))
    await manifests.check(servers)
    (labels,) = (each["spec"]["template"]["metadata"]["labels"] for each in servers)
    (container,) = servers[0]["spec"]["template"]["spec"]["containers"]
    (port,) = (each["containerPort"] for each in container["ports"])
    standalone, gateway = (rendered(helm, line) for line in helm_commands("kubernetes-quickstart"))
    pool = of_kind(gateway, "InferencePool")["spec"]
    assert pool["selector"] == {"matchLabels": labels}
    assert pool["targetPorts"] == [{"number": port}]
    text = " ".join(options_of(standalone))
    assert re.search(rf"--endpoint-selector[= ]app={labels['app']}\b", text)
    assert re.search(rf"--endpoint-target-ports[= ]{port}\b", text)
    assert not [each for each in standalone if each["kind"] == "InferencePool"]


def test_names_and_ports_of_the_page_are_those_of_the_standalone_release(helm: Helm) -> None:
    page = (ROOT / "docs" / "kubernetes-quickstart.md").read_text()
    objects = rendered(helm, helm_commands("kubernetes-quickstart")[0])
    deployment = of_kind(objects, "Deployment")["metadata"]["name"]
    assert set(re.findall(r"deployment/(\S+)", page)) == {deployment}
    ((service, port),) = set(re.findall(r"service/(\S+) \d+:(\d+)", page))
    ports = of_kind(objects, "Service", service)["spec"]["ports"]
    assert int(port) in {each["port"] for each in ports}
    assert set(re.findall(r"--container (\S+)", page)) <= containers(objects).keys()


def test_two_replicas_serve_on_different_nodes_as_the_page_says(helm: Helm) -> None:
    (command,) = helm_commands("high-availability")
    objects = rendered(helm, command)
    deployment = of_kind(objects, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    keys = {
        each["topologyKey"] for each in deployment["template"]["spec"]["topologySpreadConstraints"]
    }
    assert {"kubernetes.io/hostname", "topology.kubernetes.io/zone"} <= keys
    assert of_kind(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert not any("--ha-enable-leader-election=true" in each for each in options_of(objects))
    led = rendered(helm, command.rpartition(" --set ")[0])
    assert any("--ha-enable-leader-election" in each for each in options_of(led))
