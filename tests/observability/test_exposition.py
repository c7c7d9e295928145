"""The page in pieces is the page of prometheus_client, byte for byte."""

import gc
from typing import Any, ClassVar

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_format

from epp.observability import (
    Exposition,
    FlowMetrics,
    Metrics,
    OperatorNames,
    PluginMetricsCollector,
)
from epp.observability.metric_families import Family
from epp.scheduling import Plugin
from epp.testing import make_endpoint, make_request


class Counting(Plugin):
    """Has a counter and a gauge."""

    type: ClassVar[str] = "counting"
    name = "mine"

    def read(self) -> dict[tuple[str, ...], float]:
        return {('quo"ted',): 1.0, ("new\nline",): 2.5e9}


def filled(sets: int = 3) -> Metrics:
    metrics = Metrics()
    FlowMetrics(metrics, "pool").passed(make_request(model="llama"))
    odd = ["llama", 'quo"ted', "new\nline", "back\\slash", "ümlaut", "\udc80"]
    metrics.names.learn_from(lambda: OperatorNames(models=odd))
    for model in (*odd, *(f"model-{n}" for n in range(sets))):
        request = metrics.for_request(model, model, "default-flow", 0)
        request.total.add(2_000_000)
        request.duration.observe(0.1)
        request.size.observe(10**9)
        request.answer.tokens.observe(7)
        request.error("BadRequest")
    metrics.watch_pool("pool", lambda: [make_endpoint(f"ns/{n}") for n in range(500)])
    metrics.watch_held_bytes(lambda: 5e8)
    return metrics


def theirs(metrics: Metrics, *, openmetrics: bool) -> bytes:
    if openmetrics:
        page: bytes = openmetrics_format.generate_latest(metrics.registry)  # type: ignore[no-untyped-call] # it has no types
        return page
    return generate_latest(metrics.registry)


def ours(metrics: Metrics, *names: str, openmetrics: bool) -> bytes:
    pieces = Exposition(metrics.registry).render(openmetrics=openmetrics, names=names)
    return b"".join(pieces)


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
def test_the_page_is_that_of_prometheus_client(*, openmetrics: bool) -> None:
    metrics = filled()
    plugin, plugins = Counting(), PluginMetricsCollector(metrics.budget)
    metrics.registry.register(plugins)
    plugins.counter(plugin, "things_total", "Things\nand \\.", ["kind"]).inc("x")
    plugins.gauge(plugin, "heat", "Heat.", plugin.read, ["place"])
    ours(metrics, openmetrics=openmetrics)  # it tells how long the page was the last time
    page = ours(metrics, openmetrics=openmetrics)
    assert b"things_total" in page
    assert b"llm_d_epp_heat" in page
    assert page == theirs(metrics, openmetrics=openmetrics)


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
@pytest.mark.parametrize(
    "name",
    [
        "llm_d_epp_request_total",
        "llm_d_epp_request_running",
        "llm_d_epp_request_duration_seconds_bucket",
        "llm_d_epp_request_duration_seconds_sum",
        "llm_d_epp_request_held_bytes",
        "llm_d_epp_shadow_runs_total",
        "no_such_name",
    ],
)
def test_one_name_alone_can_be_asked_for(name: str, *, openmetrics: bool) -> None:
    metrics = filled()
    restricted: Any = metrics.registry.restricted_registry([name])
    write: Any = openmetrics_format.generate_latest if openmetrics else generate_latest
    assert ours(metrics, name, openmetrics=openmetrics) == write(restricted)


def test_pieces_are_small_and_nothing_is_made_before_it_is_asked_for() -> None:
    metrics = filled(sets=100)
    page = Exposition(metrics.registry).render(openmetrics=False, names=())
    first = next(page)
    metrics.limits_exceeded.labels("body-bytes").inc()
    rest = list(page)
    assert b'request_limit_exceeded_total{limit="body-bytes"} 1.0' in b"".join(rest)
    assert max(map(len, (first, *rest))) <= 64 * 1024
    assert len(rest) > 10


def test_a_long_page_makes_no_object_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = filled(sets=100)
    made = 0

    def collect(_: Family[Any]) -> list[Any]:
        nonlocal made
        made += 1
        return []

    monkeypatch.setattr(Family, "collect", collect)
    lines = ours(metrics, openmetrics=False).count(b"\n")
    assert (lines > 5000, made) == (True, 0)


def test_a_child_that_comes_or_goes_during_the_page_does_not_break_it() -> None:
    metrics = filled(sets=50)
    for n, _ in enumerate(Exposition(metrics.registry).render(openmetrics=True, names=())):
        metrics.for_request(f"new-{n}", f"new-{n}", "default-flow", 0).total.inc()
        labels = (f"model-{n}", f"model-{n}", "default-flow", "0")
        metrics.requests.sets.drop(labels)
    gc.collect()
    assert ours(metrics, openmetrics=True).endswith(b"# EOF\n")


def test_the_length_of_the_page_is_known_beforehand() -> None:
    metrics = filled(sets=100)
    length = len(ours(metrics, openmetrics=False))
    assert metrics.registry.page_bytes == pytest.approx(length, rel=0.1)
