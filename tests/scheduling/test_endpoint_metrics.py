"""The metrics of an endpoint at another request time."""

from dataclasses import fields, replace

from epp.scheduling import EndpointMetrics


def test_another_time_keeps_all_other_values() -> None:
    values = {
        field.name: frozenset({field.name}) if "adapters" in field.name else number
        for number, field in enumerate(fields(EndpointMetrics), start=1)
    }
    metrics = EndpointMetrics(**values)  # type: ignore[arg-type] # each value differs
    assert metrics.requested(99.5) == replace(metrics, requested_at=99.5)
