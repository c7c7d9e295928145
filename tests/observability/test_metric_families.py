"""The hot metrics' page, compared with prometheus_client's own for the same observations."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import prometheus_client as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from epp.observability.metric_children import Counter, Gauge, Histogram, place_among
from epp.observability.metric_families import Family

BOUNDS = (0.25, 1.0, 8.0)
LABELS = ("model", "id")

VALUES = st.one_of(st.sampled_from(BOUNDS), st.floats(0, 20), st.integers(0, 2**40))
SETS = st.sampled_from([("m", "1"), ("m", "2"), ('quo"ted', "new\nline"), ("", "\\")])
KINDS = st.sampled_from(["counter", "gauge", "dec", "histogram"])
STEPS = st.lists(st.tuples(KINDS, SETS, VALUES), max_size=30)


@pytest.fixture(autouse=True, scope="module")
def _no_created_series() -> Iterator[None]:
    """Have prometheus_client leave them out, too."""
    reference.disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types
    yield
    reference.enable_created_metrics()  # type: ignore[no-untyped-call] # it has no types


def ours(steps: Sequence[tuple[str, tuple[str, str], float]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Family("counter", "seen_total", "Seen.", LABELS, Counter)
    gauge = Family("gauge", "now", "Now.", LABELS, Gauge)
    histogram = Family("histogram", "took_seconds", "Took.", LABELS, lambda: Histogram(BOUNDS))
    alone = Family("counter", "alone_total", "No label.", (), Counter)
    alone.labels()
    for family in (counter, gauge, histogram, alone):
        registry.register(family)
    for kind, labels, value in steps:
        if kind == "counter":
            counter.labels(*labels).inc()
        elif kind == "gauge":
            gauge.labels(*labels).inc()
        elif kind == "dec":
            gauge.labels(*labels).dec()
        else:
            histogram.labels(*labels).observe(value)
    return registry


def theirs(steps: Sequence[tuple[str, tuple[str, str], float]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = reference.Counter("seen_total", "Seen.", LABELS, registry=registry)
    gauge = reference.Gauge("now", "Now.", LABELS, registry=registry)
    histogram = reference.Histogram(
        "took_seconds", "Took.", LABELS, registry=registry, buckets=BOUNDS
    )
    reference.Counter("alone_total", "No label.", registry=registry)
    for kind, labels, value in steps:
        if kind == "counter":
            counter.labels(*labels).inc()
        elif kind == "gauge":
            gauge.labels(*labels).inc()
        elif kind == "dec":
            gauge.labels(*labels).dec()
        else:
            histogram.labels(*labels).observe(value)
    return registry


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(generate_latest, id="text"),
        pytest.param(openmetrics.generate_latest, id="OpenMetrics"),
    ],
)
@given(steps=STEPS)
def test_the_page_is_that_of_prometheus_client(
    page: Callable[[CollectorRegistry], bytes],
    steps: list[tuple[str, tuple[str, str], float]],
) -> None:
    assert page(ours(steps)) == page(theirs(steps))


@pytest.mark.parametrize("name", ["seen_total", "took_seconds_bucket", "now", "alone_total"])
def test_one_name_alone_can_be_asked_for(name: str) -> None:
    steps = [(kind, ("m", "1"), 1.0) for kind in ("counter", "gauge", "histogram")]
    pages = [generate_latest(each(steps).restricted_registry([name])) for each in (ours, theirs)]
    assert pages[0] == pages[1] != b""


def test_a_name_is_taken_once() -> None:
    registry = ours([])
    with pytest.raises(ValueError, match="seen_total"):
        registry.register(Family("counter", "seen_total", "Again.", (), Counter))


@pytest.mark.parametrize(
    ("value", "bucket"),
    [
        pytest.param(0, 0, id="nothing"),
        pytest.param(0.25, 0, id="a bound belongs to its bucket"),
        pytest.param(0.26, 1, id="above it"),
        pytest.param(float("inf"), 3, id="infinity"),
        pytest.param(-1, 0, id="below all"),
    ],
)
def test_bounds_are_inclusive(value: float, bucket: int) -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(value)
    counts = [sample[2] for sample in histogram.samples() if sample[0] == "_bucket"]
    assert counts == [0] * bucket + [1] * (4 - bucket)


def test_a_wrong_number_of_label_values_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seen has labels \('model', 'id'\), given were \('m',\)"):
        Family("counter", "seen_total", "Seen.", LABELS, Counter).labels("m")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("\udc80", "\\\\udc80", id="half a surrogate pair"),
        pytest.param(None, "None", id="nothing"),
        pytest.param(7, "7", id="a number"),
    ],
)
def test_a_label_that_is_no_text_does_not_spoil_the_page(value: Any, shown: str) -> None:
    registry = CollectorRegistry()
    family = Family("gauge", "now", "Now.", ("model",), Gauge)
    registry.register(family)
    for _ in range(2):
        family.labels(value).inc()
    assert f'now{{model="{shown}"}} 2.0' in generate_latest(registry).decode().splitlines()


def test_a_child_is_made_once() -> None:
    family = Family("gauge", "now", "Now.", LABELS, Gauge)
    assert family.labels("m", "1") is family.labels("m", "1")
    assert family.labels("m", "1") is not family.labels("m", "2")


@pytest.mark.parametrize("value", ["m", "\udc80", None])
def test_a_child_that_is_removed_is_off_the_page_and_begins_anew(value: Any) -> None:
    registry = CollectorRegistry()
    family = Family("gauge", "now", "Now.", ("model",), Gauge)
    registry.register(family)
    family.labels(value).add(2)
    family.labels("neighbour").add(-1.5)
    family.remove(value)
    assert registry.get_sample_value("now", {"model": "neighbour"}) == -1.5
    assert len(next(iter(family.collect())).samples) == 1
    family.labels(value).add(0.5)
    assert {sample.value for sample in next(iter(family.collect())).samples} == {-1.5, 0.5}


def test_to_remove_what_is_not_there_changes_nothing() -> None:
    family = Family("gauge", "now", "Now.", ("model",), Gauge)
    family.labels("m").inc()
    family.remove("n")
    assert [sample.value for sample in next(iter(family.collect())).samples] == [1]


@given(st.lists(VALUES), st.sampled_from([0.1, 1.0, 3.0]))
def test_a_watched_histogram_counts_the_same_and_tells_of_what_exceeds_the_limit(
    values: list[float], limit: float
) -> None:
    plain, watched = Histogram(BOUNDS), Histogram(BOUNDS)
    exceeded: list[None] = []
    observe = watched.observer(limit, lambda: exceeded.append(None))
    for value in values:
        plain.observe(value)
        observe(value)
    assert list(watched.samples()) == list(plain.samples())
    assert len(exceeded) == sum(value > limit for value in values)


@given(
    st.lists(st.floats(allow_nan=False), max_size=30, unique=True).map(sorted),
    st.floats(allow_nan=False),
)
def test_the_place_of_a_value_is_that_of_bisection(bounds: list[float], value: float) -> None:
    for each in (value, *bounds):
        places = {place_among(bounds, each, guess) for guess in range(len(bounds) + 1)}
        assert places == {bisect_left(bounds, each)}
