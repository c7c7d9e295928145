"""Prometheus's own linter on the metrics page of a process."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from integration.metric_runs import RUNS, Run
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
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

DICTATED = (
    ("llm_d_", "metric names should not contain abbreviated units"),
    ("llm_d_epp_program_aware_", 'use base unit "seconds" instead of "milliseconds"'),
)
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
    request.response.tokens.observe(7)
    request.error("BadRequest")
    metrics.attempts.succeeded("llama", make_endpoint("ns/pod"))
    metrics.watch_pool("pool", lambda: [make_endpoint("ns/pod")])
    pieces = Exposition(metrics.registry).render(openmetrics=False, names=())
    return b"".join(pieces).decode()


def complaints(text: str) -> tuple[list[str], int]:
    """Return what promtool complains of, without what is dictated, and its exit status."""
    linted = subprocess.run(
        [find("promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    ours = [
        line
        for line in (linted.stdout + linted.stderr).splitlines()
        if not any(line.startswith(name) and line.endswith(why) for name, why in DICTATED)
    ]
    return ours, linted.returncode


def test_the_linter_complains_of_nothing_but_what_the_reference_dictates() -> None:
    text = page()
    assert len(list(text_string_to_metric_families(text))) > 80
    assert complaints(text) == ([], 3)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
async def test_the_linter_accepts_the_page_of_a_process_that_has_served(
    run: Run, tmp_path: Path
) -> None:
    with capture_logs():
        pages = await run(tmp_path)
    for text in pages:
        assert await asyncio.to_thread(complaints, text) == ([], 3)
