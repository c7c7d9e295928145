"""Scheduling attempts are counted, however many endpoints have come and gone."""

import pytest

from epp.observability import Metrics
from epp.request_control import attempts
from epp.request_control.attempts import Attempts
from epp.testing import make_endpoint


def test_what_is_kept_to_count_faster_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST_BOUND", 100)
    metrics = Metrics()
    counting = Attempts(metrics)
    for number in range(1000):
        endpoint = make_endpoint(f"default/pod-{number}", address=f"10.0.0.1:{number}")
        counting.succeeded("llama", endpoint)
        counting.succeeded("llama", endpoint)
    assert len(counting._bound) <= 100
    labels = {
        "status": "success",
        "target_model_name": "llama",
        "endpoint_name": "pod-0",
        "namespace": "default",
        "port": "0",
    }
    assert metrics.registry.get_sample_value("llm_d_epp_scheduler_attempts_total", labels) == 2
