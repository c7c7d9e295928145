"""The page rendered in pieces equals that of prometheus_client, byte for byte."""

import gc
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

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
        request.response.tokens.observe(7)
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


def of_pools(
    pools: Mapping[str, Metrics], *names: str, openmetrics: bool = False
) -> tuple[bytes, Metrics]:
    """Return the page of a process that serves pools, and the metrics of the process."""
    process = Metrics()
    process.for_refusal("", "", "default-flow", 0).error("NotFound")
    registries = {name: metrics.registry for name, metrics in pools.items()}
    pieces = Exposition(process.registry, lambda: registries).render(
        openmetrics=openmetrics, names=names
    )
    return b"".join(pieces), process


def parsed(page: bytes, *, openmetrics: bool) -> dict[str, Metric]:
    """Return the metrics of a page by name; each may stand on it only once."""
    parse = openmetrics_families if openmetrics else text_string_to_metric_families
    families = list(parse(page.decode()))
    found = {family.name: family for family in families}
    assert len(found) == len(families)
    return found


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
def test_the_samples_of_several_pools_have_their_name(*, openmetrics: bool) -> None:
    pools = {"chat": filled(), "code": filled(5)}
    for metrics in pools.values():
        metrics.registry.register(PluginMetricsCollector(metrics.budget))
    page, _ = of_pools(pools, openmetrics=openmetrics)
    families = parsed(page, openmetrics=openmetrics)
    models: dict[str, set[str]] = {"": set(), "chat": set(), "code": set()}
    for sample in families["llm_d_epp_request"].samples:
        models[sample.labels.get("inference_pool", "")].add(sample.labels["model_name"])
    assert models["code"] - models["chat"] == {"model-3", "model-4"}
    (refused,) = (
        sample
        for sample in families["llm_d_epp_request_error"].samples
        if "inference_pool" not in sample.labels
    )
    assert refused.labels["error_code"] == "NotFound"
    buckets = families["llm_d_epp_request_duration_seconds"].samples
    assert {sample.labels.get("inference_pool") for sample in buckets} >= {"chat", "code"}
    plain = families["llm_d_epp_scheduler_e2e_duration_seconds"].samples
    assert {sample.labels.get("inference_pool") for sample in plain} == {None, "chat", "code"}
    per_endpoint = families["llm_d_epp_ready_endpoints"].samples
    assert {sample.labels["inference_pool"] for sample in per_endpoint} == {"chat", "code"}


def test_a_metric_that_has_the_name_of_the_pool_keeps_it() -> None:
    pools = {name: Metrics() for name in ("chat", "code")}
    for name, metrics in pools.items():
        FlowMetrics(metrics, f"own-{name}").passed(make_request())
    page, _ = of_pools(pools)
    counted = parsed(page, openmetrics=False)[
        "llm_d_epp_flow_control_request_queue_duration_seconds"
    ]
    assert {sample.labels["inference_pool"] for sample in counted.samples} == {
        "own-chat",
        "own-code",
    }


def test_some_names_of_several_pools() -> None:
    pools = {"chat": filled(), "code": filled()}
    page, _ = of_pools(pools, "llm_d_epp_request_running")
    (family,) = parsed(page, openmetrics=False).values()
    assert family.name == "llm_d_epp_request_running"
    found = {sample.labels.get("inference_pool") for sample in family.samples}
    assert found == {None, "chat", "code"}


def test_each_pool_measures_its_own_part_of_the_page() -> None:
    pools = {"chat": filled(), "code": Metrics()}
    _, process = of_pools(pools)
    chat, code, own = (each.registry.collected_bytes for each in (*pools.values(), process))
    assert chat > 100 * 500  # lines of 500 endpoints
    assert code == own == 0
