"""The chart's choices: labels, drain times, leader election, rights, policies."""

import json
from typing import Any

import pytest
import yaml
from kube.charts import LABELS, MINIMAL, containers, render, values_of

from epp.lab.envoy import validate
from tools.chart.helm import Helm, of_kind
from tools.chart.paths import CHART


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        pytest.param(MINIMAL, {"llm-d-router-gateway": "llama-epp"}, id="llm-d-router-gateway"),
        pytest.param(
            {"router": {"inferencePool": {"create": False}, **MINIMAL["router"]}},
            {"llm-d-router-standalone": "llama-epp"},
            id="llm-d-router-standalone",
        ),
        pytest.param(
            values_of("legacy-minimal"),
            {"inferencepool": "llama-epp"},
            id="inferencepool",
        ),
        pytest.param(values_of("legacy-standalone"), {"epp": "llama-epp"}, id="standalone"),
        pytest.param({**MINIMAL, "selectorLabels": {"app": "mine"}}, {"app": "mine"}, id="given"),
    ],
)
def test_pods_have_the_labels_of_the_go_epps_chart(
    helm: Helm, values: dict[str, Any], labels: dict[str, str]
) -> None:
    selector = of_kind(helm.render(values), "Deployment")["spec"]["selector"]
    assert selector == {"matchLabels": labels}


def test_the_older_layout_gives_the_same_objects(helm: Helm) -> None:
    older = helm.render(
        {
            "selectorLabels": LABELS,
            "inferenceExtension": {
                "replicas": 2,
                "flags": [{"name": "v", "value": 4}],
                "env": [{"name": "A", "value": "b"}],
                "resources": {"requests": {"cpu": "2"}},
                "monitoring": {"interval": "7s", "prometheus": {"enabled": True}},
            },
            "inferencePool": {
                "targetPortNumber": 8001,
                "modelServerType": "sglang",
                "modelServers": {"matchLabels": LABELS},
                "failureMode": "FailClose",
            },
            "inferenceObjectives": [{"name": "chat", "priority": 1}],
            "experimentalHttpRoute": {"enabled": True, "baseModel": "m"},
            "provider": {"name": "istio"},
            "istio": {"destinationRule": {"host": "epp.example"}},
        }
    )
    present = helm.render(
        {
            "selectorLabels": LABELS,
            "router": {
                "epp": {
                    "replicas": 2,
                    "flags": {"v": 4},
                    "env": {"A": "b"},
                    "resources": {"requests": {"cpu": "2"}},
                },
                "monitoring": {"interval": "7s", "prometheus": {"enabled": True}},
                "modelServers": {
                    "type": "sglang",
                    "targetPorts": [{"number": 8001}],
                    "matchLabels": LABELS,
                },
                "inferencePool": {"failureMode": "FailClose"},
                "inferenceObjectives": [{"name": "chat", "priority": 1}],
            },
            "httpRoute": {"create": True, "baseModel": "m"},
            "provider": {"name": "istio", "istio": {"destinationRule": {"host": "epp.example"}}},
        }
    )
    assert older == present


@pytest.mark.parametrize(
    ("values", "delay", "timeout"),
    [
        pytest.param({}, 10, "110s", id="by default"),
        pytest.param({"flags": {"drain-timeout": "1m30s"}}, 90, "30s", id="flag of the Go EPP"),
        pytest.param({"flags": {"drain-timeout": 0}}, 0, "120s", id="none"),
        pytest.param({"flags": {"drain-timeout": "500ms"}}, 1, "119s", id="less than a second"),
        pytest.param({"flags": {"drain-delay-seconds": 2.5}}, 3, "117s", id="flag of ours"),
        pytest.param({"terminationGracePeriodSeconds": 600}, 10, "580s", id="a long period"),
    ],
)
def test_the_drain_fits_the_grace_period(
    helm: Helm, values: dict[str, Any], delay: int, timeout: str
) -> None:
    objects = render(helm, router={"epp": values})
    args = containers(objects)["epp"]["args"]
    assert {f"--drain-delay-seconds={delay}", f"--drain-timeout={timeout}"} <= set(args)
    spec = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == delay + int(timeout[:-1]) + 10


def test_flags_replace_the_charts_own_and_numbers_are_written_out(helm: Helm) -> None:
    flags = {"max-streams": 2_000_000, "secure-serving": False, "grpc-port": 9100, "pool-name": "p"}
    args = containers(render(helm, router={"epp": {"flags": flags}}))["epp"]["args"]
    names = [each.partition("=")[0] for each in args]
    assert len(set(names)) == len(names)
    assert {"--max-streams=2000000", "--secure-serving=false", "--pool-name=p"} <= set(args)


@pytest.mark.parametrize(
    ("epp", "elects", "kinds"),
    [
        pytest.param({"replicas": 1}, False, set(), id="one"),
        pytest.param({"replicas": 2}, True, set(), id="several"),
        pytest.param(
            {"replicas": 2, "flags": {"ha-enable-leader-election": False}},
            False,
            {"PodDisruptionBudget"},
            id="several that serve",
        ),
        pytest.param(
            {"replicas": 1, "flags": {"ha-enable-leader-election": "true"}},
            True,
            set(),
            id="one that leads",
        ),
        pytest.param(
            {"replicas": 1, "autoscaling": {"enabled": True}},
            False,
            {"PodDisruptionBudget", "HorizontalPodAutoscaler"},
            id="as many as needed",
        ),
    ],
)
def test_of_several_replicas_one_leads_unless_asked_otherwise(
    helm: Helm, epp: dict[str, Any], elects: bool, kinds: set[str]
) -> None:
    objects = render(helm, router={"epp": epp})
    assert ("--ha-enable-leader-election=true" in containers(objects)["epp"]["args"]) == elects
    rules = of_kind(objects, "Role")["rules"]
    assert any("leases" in rule["resources"] for rule in rules) == elects
    found = {each["kind"] for each in objects}
    assert found & {"PodDisruptionBudget", "HorizontalPodAutoscaler"} == kinds
    strategy = of_kind(objects, "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert strategy["maxUnavailable"] == ("100%" if elects else 0)


def test_without_tokens_no_right_is_in_the_whole_cluster(helm: Helm) -> None:
    open_port = {"prometheus": {"enabled": True, "auth": {"enabled": False}}}
    objects = render(helm, router={"monitoring": open_port})
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    assert "--metrics-endpoint-auth=false" in containers(objects)["epp"]["args"]
    assert "authorization" not in of_kind(objects, "ServiceMonitor")["spec"]["endpoints"][0]


def test_envoy_accepts_its_bootstrap_and_stops_before_the_endpoint_picker(helm: Helm) -> None:
    objects = helm.render(values_of("standalone-minimal"))
    text = of_kind(objects, "ConfigMap", "llama-epp-envoy")["data"]["envoy.yaml"]
    validate(text)
    spec = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    (picker,), (envoy,) = spec["initContainers"], spec["containers"]
    assert picker["restartPolicy"] == "Always"
    longest = int(envoy["lifecycle"]["preStop"]["exec"]["command"][-1])
    drain = int(next(e for e in picker["args"] if "drain-timeout" in e).split("=")[1][:-1])
    assert longest + drain + 20 == spec["terminationGracePeriodSeconds"]
    document = yaml.safe_load(text)
    (listener,) = document["static_resources"]["listeners"]
    assert listener["address"]["socket_address"]["port_value"] == 8081


def test_an_endpoint_picker_that_may_lead_is_set_to_stop_together_with_envoy(helm: Helm) -> None:
    objects = render(helm, mode="standalone", router={"epp": {"replicas": 2}})
    spec = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    assert "initContainers" not in spec
    args = containers(objects)["epp"]["args"]
    longest = containers(objects)["envoy"]["lifecycle"]["preStop"]["exec"]["command"][-1]
    # It gives the Lease away at once, and serves Envoy as long as that has requests.
    assert {f"--drain-delay-seconds={longest}", "--drain-timeout=10s"} <= set(args)
    assert spec["terminationGracePeriodSeconds"] == int(longest) + 30


def test_a_flag_that_is_off_wins_over_a_value_that_is_on(helm: Helm) -> None:
    on = {"epp": {"flags": {"tracing": False}}, "tracing": {"enabled": True}}
    args = containers(render(helm, router=on))["epp"]["args"]
    assert [each for each in args if "tracing" in each] == ["--tracing=false"]


def test_labels_are_texts(helm: Helm) -> None:
    labels = {"llm-d.ai/inference-serving": True, "generation": 2}
    objects = render(
        helm,
        networkPolicy={"enabled": True},
        provider={"name": "envoy-gateway"},
        router={"modelServers": {"matchLabels": labels}},
    )
    texts = {"app": "vllm", "llm-d.ai/inference-serving": "true", "generation": "2"}
    assert of_kind(objects, "InferencePool")["spec"]["selector"]["matchLabels"] == texts
    assert of_kind(objects, "Service", "llama-epp-model-servers")["spec"]["selector"] == texts
    (_, to_servers) = of_kind(objects, "NetworkPolicy")["spec"]["egress"]
    assert to_servers["to"] == [{"podSelector": {"matchLabels": texts}}]


def test_ports_follow_their_flags(helm: Helm) -> None:
    flags = {"grpc-port": 9100, "grpc-health-port": "9101", "metrics-port": 9102}
    objects = render(helm, router={"epp": {"flags": flags}})
    picker = containers(objects)["epp"]
    assert [port["containerPort"] for port in picker["ports"]] == [9100, 9101, 9102]
    assert picker["livenessProbe"]["grpc"]["port"] == 9101
    service = of_kind(objects, "Service")["spec"]["ports"]
    assert [port["port"] for port in service] == [9100, 9102]
    reference = of_kind(objects, "InferencePool")["spec"]["endpointPickerRef"]
    assert reference["port"]["number"] == 9100


def test_a_field_of_a_security_context_can_be_removed(helm: Helm) -> None:
    objects = render(
        helm,
        mode="standalone",
        router={
            "epp": {"podSecurityContext": {"runAsGroup": None, "fsGroup": None}},
            "proxy": {"securityContext": {"runAsUser": None}},
        },
    )
    spec = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"].keys() == {"runAsNonRoot", "seccompProfile"}
    envoy = containers(objects)["envoy"]["securityContext"]
    assert envoy.keys() == {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}


def test_the_first_switch_for_leader_election_leaves_other_flags_alone(helm: Helm) -> None:
    older = {"enableLeaderElection": True, "flags": {"v": 4}}
    args = containers(render(helm, inferenceExtension=older))["epp"]["args"]
    assert {"--ha-enable-leader-election=true", "--v=4"} <= set(args)


def test_a_policy_of_envoy_gateway_is_where_its_target_is(helm: Helm) -> None:
    objects = helm.render(values_of("own-envoy-gateway-lean"))
    namespaces = {
        each["kind"]: each["metadata"]["namespace"]
        for each in objects
        if "gateway.envoyproxy.io" in each["apiVersion"]
    }
    assert namespaces == {
        "ClientTrafficPolicy": "gateway-infra",
        "EnvoyPatchPolicy": "gateway-infra",
        "EnvoyExtensionPolicy": "default",
        "BackendTrafficPolicy": "default",
    }
    patch = of_kind(objects, "EnvoyPatchPolicy")["spec"]
    assert patch["jsonPatches"][0]["name"] == "gateway-infra/inference-gateway/https"
    (backend,) = of_kind(objects, "EnvoyExtensionPolicy")["spec"]["extProc"][0]["backendRefs"]
    service = of_kind(objects, "Service", backend["name"])
    assert backend["port"] in {port["port"] for port in service["spec"]["ports"]}
    (route,) = of_kind(objects, "HTTPRoute")["spec"]["rules"]
    of_kind(objects, "Service", route["backendRefs"][0]["name"])


def test_the_alerts_are_those_of_the_file_for_this_release(helm: Helm) -> None:
    prometheus = {"enabled": True, "rules": {"enabled": True, "extraLabels": {"release": "p"}}}
    objects = render(helm, router={"monitoring": {"prometheus": prometheus}})
    rule = of_kind(objects, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "p"
    text = (CHART / "files" / "rules.yaml").read_text()
    ours = text.replace('job="epp"', 'job="llama-epp",namespace="default"')
    assert json.dumps(rule["spec"]) == json.dumps(yaml.safe_load(ours))
