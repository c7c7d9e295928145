"""Prometheus's own check of the alerts: their syntax, and when they fire."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from system.tools import output

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"


async def test_the_rules_are_valid() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert f"SUCCESS: {len(rules)} rules found" in await output("promtool", "check", "rules", RULES)


def series(metric: str, values: str, /, **labels: str) -> dict[str, str]:
    pairs = ",".join(f'{key}="{value}"' for key, value in {"job": "epp", **labels}.items())
    return {"series": f"{metric}{{{pairs}}}", "values": values}


CASES = (
    pytest.param(
        "EndpointPickerDown",
        [series("up", "0x20", pod="a")],
        [series("up", "0x20", pod="a"), series("up", "1x20", pod="b")],
        id="none of the replicas answers",
    ),
    pytest.param(
        "EndpointPickerWithoutEndpoints",
        [series("llm_d_epp_ready_endpoints", "0x20", name="llama")],
        [
            series("llm_d_epp_ready_endpoints", "0x20", name="llama", pod="a"),
            series("llm_d_epp_ready_endpoints", "2x20", name="llama", pod="b"),
        ],
        id="no endpoints",
    ),
    pytest.param(
        "EndpointPickerErrors",
        [
            series("llm_d_epp_request_error_total", "0+10x20", error_code="Internal"),
            series("llm_d_epp_request_total", "0+100x20"),
        ],
        [
            series("llm_d_epp_request_error_total", "0+1x20", error_code="Internal"),
            series("llm_d_epp_request_total", "0+100x20"),
        ],
        id="one of ten requests fails",
    ),
    pytest.param(
        "EndpointPickerErrors",
        [series("llm_d_epp_request_error_total", "0+10x20", error_code="ServiceUnavailable")],
        [series("llm_d_epp_request_total", "0+100x20")],
        id="every request is refused, so none was sent",
    ),
    pytest.param(
        "EndpointPickerTooManyEndpointsFail",
        [series("llm_d_epp_outlier_detection_panic", "1x20", name="llama", pod="a")],
        [series("llm_d_epp_outlier_detection_panic", "0x20", name="llama", pod="a")],
        id="all endpoints are used although they fail",
    ),
    pytest.param(
        "EndpointPickerRefusesWaitingRequests",
        [
            series("llm_d_epp_flow_control_requests_total", "0+90x20", outcome="Dispatched"),
            series("llm_d_epp_flow_control_requests_total", "0+10x20", outcome="Evicted"),
        ],
        [series("llm_d_epp_flow_control_requests_total", "0+90x20", outcome="Dispatched")],
        id="one of ten requests waits in vain",
    ),
    pytest.param(
        "EndpointPickerConfigurationRefused",
        [
            series("llm_d_epp_config_last_reload_successful", "0x20", pod="a"),
            series("llm_d_epp_config_last_reload_successful", "1x20", pod="b"),
        ],
        # Refused for three minutes, then mended.
        [series("llm_d_epp_config_last_reload_successful", "1x4 0x3 1x20", pod="a")],
        id="one replica has refused the configuration",
    ),
    pytest.param(
        "EndpointPickerCannotReadCluster",
        [series("llm_d_epp_kubernetes_faulty", "1x20", resource="pods")],
        [series("llm_d_epp_kubernetes_faulty", "1x3 0x20", resource="pods")],
        id="pods are not followed",
    ),
    pytest.param(
        "EndpointPickerWithoutLeader",
        [series("leader_election_master_status", "0x20", name="l", pod="a")],
        [
            series("leader_election_master_status", "0x20", name="l", pod="a"),
            series("leader_election_master_status", "1x20", name="l", pod="b"),
        ],
        id="nobody leads",
    ),
    pytest.param(
        "EndpointPickerPluginDisabled",
        [series("llm_d_epp_plugin_disabled", "0x10 1x10", plugin_name="p")],
        [series("llm_d_epp_plugin_disabled", "0x20", plugin_name="p")],
        id="a plugin is not called any more",
    ),
    pytest.param(
        "EndpointPickerInternalFault",
        [series("llm_d_epp_internal_faults_total", "0x10 1x10")],
        # The last one is longer ago than the alert looks.
        [series("llm_d_epp_internal_faults_total", "0x2 1x20")],
        id="an error of its own",
    ),
    pytest.param(
        "EndpointPickerStandsStill",
        [series("llm_d_epp_event_loop_longest_pause_own_seconds", "0.6x20", pod="a")],
        [series("llm_d_epp_event_loop_longest_pause_own_seconds", "0.1x5 2x2 0.1x20", pod="a")],
        id="pauses go on",
    ),
    pytest.param(
        "EndpointPickerShortOfDescriptors",
        [
            series("llm_d_epp_descriptors_open", "900x20"),
            series("llm_d_epp_descriptors_limit", "1000x20"),
        ],
        [
            series("llm_d_epp_descriptors_open", "700x20"),
            series("llm_d_epp_descriptors_limit", "1000x20"),
        ],
        id="nine of ten descriptors are open",
    ),
)


def test_every_alert_has_a_case() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    tested = dict.fromkeys(each.values[0] for each in CASES)
    assert list(tested) == [rule["alert"] for rule in rules]


@pytest.mark.parametrize(("alert", "firing", "silent"), CASES)
async def test_an_alert_fires_when_it_should(
    alert: str, firing: list[dict[str, str]], silent: list[dict[str, str]], tmp_path: Path
) -> None:
    def case(input_series: list[dict[str, str]], expected: int) -> dict[str, Any]:
        count = {
            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
            "eval_time": "15m",
            "exp_samples": [{"labels": "{}", "value": expected}],
        }
        return {
            "interval": "1m",
            "input_series": input_series,
            "promql_expr_test": [count],
        }

    tests = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [case(firing, 1), case(silent, 0)],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(tests))
    assert "SUCCESS" in await output("promtool", "test", "rules", path)
