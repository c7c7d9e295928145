"""The chart's refusals of values, each with a reason, and its notes about values without effect."""

from pathlib import Path
from typing import Any

import pytest
from kube.charts import MINIMAL

from tools.chart.helm import Helm, HelmError
from tools.chart.kustomize import merged
from tools.chart.paths import CHART


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({}, "router.modelServers.matchLabels: required", id="no model servers"),
        pytest.param(
            {"router": {"inferencePool": {"create": False}}},
            "router.modelServers.matchLabels: required, as without an InferencePool",
            id="no pool and no labels",
        ),
        pytest.param(
            merged(MINIMAL, {"router": {"latencyPredictor": {"enabled": True}}}),
            "router.latencyPredictor.enabled: this endpoint picker has no predicted-latency",
            id="predicted latency",
        ),
        pytest.param(
            merged(
                MINIMAL, {"mode": "standalone", "router": {"proxy": {"proxyType": "agentgateway"}}}
            ),
            "router.proxy.proxyType: agentgateway is not supported",
            id="agentgateway",
        ),
        pytest.param(
            merged(MINIMAL, {"mode": "standalone", "router": {"proxy": {"mode": "service"}}}),
            "router.proxy.mode: service is not supported",
            id="proxy as a Service",
        ),
        pytest.param(
            merged(MINIMAL, {"provider": {"gke": {"preferredBackends": {"enabled": True}}}}),
            "provider.gke.preferredBackends: not supported",
            id="preferred backends",
        ),
        pytest.param(
            merged(MINIMAL, {"router": {"epp": {"priorityRouting": {"enabled": True}}}}),
            "router.epp.priorityRouting: not supported",
            id="priority routing",
        ),
        pytest.param(
            merged(MINIMAL, {"router": {"epp": {"replicas": 2, "flags": {"workers": 2}}}}),
            "router.epp.flags.workers: workers all serve, and leader election has one process",
            id="workers and leader election",
        ),
        pytest.param(
            merged(MINIMAL, {"mode": "standalone", "router": {"epp": {"flags": {"workers": "2"}}}}),
            "router.epp.flags.workers: each worker has a socket of its own",
            id="workers behind the chart's own Envoy",
        ),
        pytest.param(
            merged(MINIMAL, {"mode": "gateway", "router": {"proxy": {"enabled": True}}}),
            "router.proxy.enabled: mode gateway has no Envoy of its own",
            id="an Envoy in gateway mode",
        ),
        pytest.param(
            merged(MINIMAL, {"router": {"epp": {"pluginsConfigFile": "mine.yaml"}}}),
            "there is no mine.yaml; define it in router.epp.pluginsCustomConfig, or name one of"
            " default-plugins.yaml, payload-agnostic.yaml",
            id="a file that is not there",
        ),
        pytest.param(
            merged(
                MINIMAL,
                {
                    "router": {
                        "epp": {
                            "pluginsConfigFile": "mine.yaml",
                            "pluginsConfig": {"kind": "EndpointPickerConfig"},
                            "pluginsCustomConfig": {"mine.yaml": ""},
                        }
                    }
                },
            ),
            "both define mine.yaml",
            id="a file that is there twice",
        ),
        pytest.param(
            merged(MINIMAL, {"router": {"epp": {"terminationGracePeriodSeconds": 20}}}),
            "router.epp.terminationGracePeriodSeconds: 20 is too short; new requests are served"
            " for 10 s",
            id="a short grace period",
        ),
        pytest.param(
            merged(
                MINIMAL,
                {"mode": "standalone", "router": {"epp": {"terminationGracePeriodSeconds": 30}}},
            ),
            "router.epp.terminationGracePeriodSeconds: 30 is too short; 30 s are for the exits",
            id="a short grace period with an Envoy",
        ),
        pytest.param(
            merged(MINIMAL, {"router": {"epp": {"flags": {"drain-timeout": "2min"}}}}),
            '"2min" is no duration',
            id="no duration",
        ),
        pytest.param(
            merged(
                MINIMAL,
                {"podDisruptionBudget": {"enabled": True}, "router": {"epp": {"replicas": 2}}},
            ),
            "podDisruptionBudget.enabled: with leader election one replica is ready",
            id="a budget that nothing could meet",
        ),
        pytest.param(
            merged(
                MINIMAL,
                {
                    "router": {
                        "epp": {
                            "autoscaling": {"enabled": True},
                            "flags": {"ha-enable-leader-election": True},
                        }
                    }
                },
            ),
            "router.epp.autoscaling.enabled: with leader election one replica serves",
            id="autoscaling of standbys",
        ),
        pytest.param(
            merged(MINIMAL, {"modelServerAutoscaling": {"kind": "keda"}}),
            "modelServerAutoscaling.scaleTargetRef.name: required",
            id="nothing to scale",
        ),
        pytest.param(
            merged(
                MINIMAL,
                {
                    "modelServerAutoscaling": {
                        "kind": "hpa",
                        "scaleTargetRef": {"name": "vllm"},
                        "minReplicas": 0,
                    }
                },
            ),
            "cannot scale to 0; set it to 1, or kind to keda",
            id="an HPA down to none",
        ),
        pytest.param(
            merged(MINIMAL, {"router": {"tokenizer": {"enabled": True}}}),
            "router.tokenizer.modelName: required",
            id="a renderer without model",
        ),
        pytest.param(
            merged(MINIMAL, {"router": {"epp": {"replica": 2}}}),
            "at '/router/epp': additional properties 'replica' not allowed",
            id="a misspelled value",
        ),
    ],
)
def test_values_that_cannot_work_are_refused_with_a_reason(
    helm: Helm, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(HelmError) as raised:
        helm.render(values)
    assert message in str(raised.value)


def test_without_the_defaults_the_message_says_how_to_upgrade(helm: Helm, tmp_path: Path) -> None:
    # As --reuse-values does after another chart: its values take the place of these.
    old = tmp_path / "chart"
    old.mkdir()
    for path in CHART.rglob("*"):
        if path.is_file() and path.name not in {"values.yaml", "values.schema.json"}:
            target = old / path.relative_to(CHART)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    with pytest.raises(HelmError, match="use helm upgrade --reset-then-reuse-values"):
        helm.render(MINIMAL, chart=old)


def notes(cluster_helm: Helm, **values: Any) -> str:
    """What helm says of an installation with values that are merged over the least."""
    words = ("install", "llama", str(CHART), "--dry-run=client")
    return cluster_helm.run(*words, values=merged(MINIMAL, values)).partition("NOTES:\n")[2]


def test_without_special_values_the_notes_are_short(cluster_helm: Helm) -> None:
    text = notes(cluster_helm)
    assert "Of your values" not in text
    assert "rollback" not in text, "there is nothing to go back to"
    assert "set httpRoute.create" in text


@pytest.mark.parametrize(
    ("values", "line"),
    [
        pytest.param(
            {"router": {"epp": {"image": {"tag": "v0.10.0"}}}},
            "router.epp.image (inferenceExtension.image) names an image of the Go EPP",
            id="image",
        ),
        pytest.param(
            {"mode": "standalone", "router": {"proxy": {"failOpen": True}}},
            "router.proxy.failOpen has no effect",
            id="fail-open",
        ),
        pytest.param(
            {"mode": "standalone", "router": {"proxy": {"presets": {"envoy": {}}}}},
            "router.proxy.presets has no effect",
            id="presets",
        ),
        pytest.param(
            {"mode": "standalone", "router": {"proxy": {"args": ["-c", "/etc/envoy/envoy.yaml"]}}},
            "ext_proc is on 127.0.0.1:9002 with TLS",
            id="own arguments of Envoy",
        ),
        pytest.param(
            {"mode": "standalone", "router": {"proxy": {"image": "envoy:distroless-v1.40"}}},
            "requests in flight are cut",
            id="an Envoy without shell",
        ),
        pytest.param(
            {"provider": {"name": "envoy-gateway"}},
            "FailOpen applies with provider.envoyGateway.mode adaptive only",
            id="fail-open at Envoy Gateway",
        ),
        pytest.param(
            {"inferenceExtension": {"replicas": 1}},
            "router.epp is the present one",
            id="the older layout",
        ),
        pytest.param({"gke": {"monitoringSecret": {}}}, "gke has no effect", id="older GKE"),
    ],
)
def test_the_notes_name_values_without_effect(
    cluster_helm: Helm, values: dict[str, Any], line: str
) -> None:
    assert line in notes(cluster_helm, **values)
