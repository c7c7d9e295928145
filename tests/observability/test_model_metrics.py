"""Attempts by endpoint and model: the series that are removed after an endpoint leaves."""

import asyncio

import pytest

from epp.observability import Metrics
from epp.observability.model_metrics import DEPARTED_SECONDS
from epp.scheduling import Endpoint
from epp.testing import make_endpoint

virtual_time = pytest.mark.looptime


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def attempts(metrics: Metrics) -> dict[str, float]:
    """Return the attempts by endpoint."""
    found: dict[str, float] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "llm_d_epp_scheduler_attempts_total":
                name = sample.labels["endpoint_name"]
                found[name] = found.get(name, 0) + sample.value
    return found


def pods(count: int) -> list[Endpoint]:
    return [make_endpoint(f"default/pod-{n}", address=f"10.0.0.{n}:8000") for n in range(count)]


@virtual_time
@pytest.mark.parametrize("model", ["llama", "m" * 300], ids=["a name", "one that folds"])
async def test_a_departed_endpoint_is_removed_when_scrapes_have_seen_its_last(
    metrics: Metrics, model: str
) -> None:
    gone, stays = pods(2)
    for endpoint in (gone, stays, gone):
        metrics.attempts.succeeded(model, endpoint)
    for endpoint in (gone, stays):
        metrics.attempts.endpoint_added(endpoint)
    metrics.attempts.endpoint_removed(gone)
    await asyncio.sleep(DEPARTED_SECONDS - 1)
    assert attempts(metrics) == {"pod-0": 2, "pod-1": 1}
    await asyncio.sleep(2)
    assert attempts(metrics) == {"pod-1": 1}


@virtual_time
async def test_an_endpoint_that_comes_back_in_time_goes_on_counting(metrics: Metrics) -> None:
    (endpoint,) = pods(1)
    metrics.attempts.endpoint_added(endpoint)
    metrics.attempts.succeeded("llama", endpoint)
    metrics.attempts.endpoint_removed(endpoint)
    await asyncio.sleep(DEPARTED_SECONDS / 2)
    (again,) = pods(1)
    metrics.attempts.endpoint_added(again)
    await asyncio.sleep(DEPARTED_SECONDS)
    metrics.attempts.succeeded("llama", again)
    assert attempts(metrics) == {"pod-0": 2}


@virtual_time
async def test_an_endpoint_that_comes_back_later_counts_from_0(metrics: Metrics) -> None:
    (endpoint,) = pods(1)
    metrics.attempts.endpoint_added(endpoint)
    metrics.attempts.succeeded("llama", endpoint)
    metrics.attempts.endpoint_removed(endpoint)
    await asyncio.sleep(DEPARTED_SECONDS + 1)
    metrics.attempts.endpoint_added(endpoint)
    metrics.attempts.succeeded("llama", endpoint)
    assert attempts(metrics) == {"pod-0": 1}


@virtual_time
async def test_an_endpoint_whose_address_changes_goes_on_counting(metrics: Metrics) -> None:
    before = make_endpoint("default/pod", address="10.0.0.1:8000")
    after = make_endpoint("default/pod", address="10.0.0.2:8000")
    metrics.attempts.endpoint_added(before)
    metrics.attempts.succeeded("llama", before)
    metrics.attempts.endpoint_added(after)  # the store tells of newcomers first
    metrics.attempts.endpoint_removed(before)
    metrics.attempts.succeeded("llama", after)
    await asyncio.sleep(DEPARTED_SECONDS + 1)
    metrics.attempts.succeeded("llama", after)
    assert attempts(metrics) == {"pod": 3}


@virtual_time
async def test_churn_of_endpoints_leaves_nothing(metrics: Metrics) -> None:
    before = metrics.registry.page_bytes
    for endpoint in pods(200):
        metrics.attempts.endpoint_added(endpoint)
        metrics.attempts.succeeded("llama", endpoint)
        metrics.attempts.endpoint_removed(endpoint)
    assert metrics.registry.page_bytes > before
    await asyncio.sleep(DEPARTED_SECONDS + 1)
    assert attempts(metrics) == {}
    assert metrics.registry.page_bytes == before


def test_endpoints_times_models_beyond_the_page_are_other() -> None:
    metrics = Metrics(max_page_bytes=200_000)
    for n in range(50):
        metrics.names.prove(f"model-{n}")
    for endpoint in pods(20):
        for n in range(50):
            metrics.attempts.succeeded(f"model-{n}", endpoint)
    found = attempts(metrics)
    assert sum(found.values()) == 20 * 50
    assert set(found) == {f"pod-{n}" for n in range(20)}, "the model folds before the endpoint"
    assert metrics.registry.page_bytes < 200_000
