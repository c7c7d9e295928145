"""Metrics of the configuration."""

from prometheus_client import CollectorRegistry

from epp.observability import ConfigMetrics


def test_every_result_of_a_reload_is_counted_from_zero_on() -> None:
    registry = CollectorRegistry()
    metrics = ConfigMetrics(registry)

    def counted() -> dict[str, float | None]:
        name = "llm_d_epp_config_reloads_total"
        results = ("success", "failure", "rollback")
        return {each: registry.get_sample_value(name, {"result": each}) for each in results}

    assert counted() == {"success": 0, "failure": 0, "rollback": 0}
    metrics.reloaded("failure")
    assert counted() == {"success": 0, "failure": 1, "rollback": 0}
