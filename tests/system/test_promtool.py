"""Prometheus's own linter on the page of a process."""

import subprocess

from prometheus_client.parser import text_string_to_metric_families
from system.tools import find

from epp.observability import (
    Exposition,
    FlowMetrics,
    Metrics,
    PluginMetricsCollector,
    RevocationMetrics,
    StreamMetrics,
    register_process,
)
from epp.testing import make_endpoint, make_request

DICTATED = (("llm_d_", "metric names should not contain abbreviated units"),)
"""Beginnings of names, and complaints about them: the names are the reference's, and their ``d`` is
an abbreviated unit, days."""


def page() -> str:
    metrics = Metrics(has_former_names=True)
    register_process(metrics.registry)
    StreamMetrics(metrics.registry).opened()
    metrics.registry.register(PluginMetricsCollector(metrics.budget, has_former_names=True))
    RevocationMetrics(metrics.registry, "pool").issued(0)
    FlowMetrics(metrics, "pool").passed(make_request(model="llama"))
    request = metrics.for_request("llama", "llama", "one", 0)
    request.answer.tokens.observe(7)
    request.error("BadRequest")
    metrics.attempts.succeeded("llama", make_endpoint("ns/pod"))
    metrics.watch_pool("pool", lambda: [make_endpoint("ns/pod")])
    pieces = Exposition(metrics.registry).render(openmetrics=False, names=())
    return b"".join(pieces).decode()


def test_the_linter_complains_of_nothing_but_what_the_reference_dictates() -> None:
    text = page()
    assert len(list(text_string_to_metric_families(text))) > 80
    linted = subprocess.run(
        [find("promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    complaints = (linted.stdout + linted.stderr).splitlines()
    ours = [
        line
        for line in complaints
        if not any(line.startswith(name) and line.endswith(why) for name, why in DICTATED)
    ]
    assert (ours, linted.returncode) == ([], 3)
