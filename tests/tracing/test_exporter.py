"""The queue of traces and the thread that exports them, in front of collectors that fail."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from epp.tracing import exporter as module
from epp.tracing.errors import SendError
from epp.tracing.exporter import BATCH, SpanExporter, TracingCollector
from epp.tracing.span import Span
from tracing.builders import make_trace


class Destination:
    """Takes spans, or fails with the errors given, one for each request."""

    name = "http://collector:4317"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.requests: list[Sequence[Span]] = []
        self.is_closed = False
        self.has_taken = threading.Semaphore(0)

    def send(self, spans: Sequence[Span]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.requests.append(spans)
        self.has_taken.release()

    def close(self) -> None:
        self.is_closed = True


Run = Callable[[Destination], SpanExporter]


@pytest.fixture
def run() -> Iterator[Run]:
    """Returns the exporter of a destination, with its thread running."""
    started: list[SpanExporter] = []

    def start(destination: Destination, **settings: Any) -> SpanExporter:
        made = SpanExporter(destination, **{"pause_seconds": 0.001, "max_queue": 100, **settings})
        made.start()
        started.append(made)
        return made

    yield start
    for each in started:
        each.stop()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_SECONDS", 0.001)


def page(exporter: SpanExporter) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(TracingCollector(exporter))
    return {
        f"{sample.name}{sample.labels.get('reason', '')}": sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_a_full_queue_drops_and_counts_and_what_waits_is_exported_at_the_end() -> None:
    destination = Destination()
    exporter = SpanExporter(destination, pause_seconds=3600, max_queue=BATCH + 1)
    for seed in range(BATCH + 3):
        exporter.export(make_trace(seed))
    exporter.start()
    exporter.stop()
    assert [len(each) for each in destination.requests] == [BATCH, 1]
    assert destination.is_closed
    assert page(exporter) == {
        "llm_d_epp_trace_spans_exported_total": BATCH + 1,
        "llm_d_epp_traces_dropped_totalqueue-full": 2,
        "llm_d_epp_traces_dropped_totalsend-failed": 0,
    }


def test_a_collector_that_comes_back_gets_the_same_spans(run: Run) -> None:
    errors = [SendError("connection refused", is_temporary=True) for _ in range(3)]
    destination = Destination(*errors)
    with capture_logs() as logs:
        exporter = run(destination)
        exporter.export(make_trace())
        assert destination.has_taken.acquire(timeout=10)
        exporter.stop()
    assert exporter.exported == 1
    assert exporter.dropped_failed == 0
    # Three failures within a minute: one line.
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("spans not exported", "warning"),
        ("spans exported again", "info"),
    ]
    assert logs[0]["error"] == "connection refused"
    assert logs[0]["endpoint"] == "http://collector:4317"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(SendError("HTTP status 400", is_temporary=False), id="permanent"),
        pytest.param(KeyError("a bug"), id="bug"),
    ],
)
def test_what_cannot_be_sent_is_dropped_and_the_thread_lives_on(run: Run, error: Exception) -> None:
    destination = Destination(error)
    with capture_logs() as logs:
        exporter = run(destination)
        exporter.export(make_trace(1))
        while not exporter.dropped_failed:  # the first is out of the queue
            threading.Event().wait(0.001)
        exporter.export(make_trace(2))
        assert destination.has_taken.acquire(timeout=10)
    assert page(exporter)["llm_d_epp_traces_dropped_totalsend-failed"] == 1
    assert logs[0]["event"] == "spans not exported"
    assert str(error) in logs[0]["error"]


def test_a_request_that_fails_too_long_is_given_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    destination = Destination(SendError("down", is_temporary=True))
    exporter = run(destination)
    exporter.export(make_trace(1))
    exporter.export(make_trace(2))
    exporter.stop()
    assert exporter.dropped_failed + exporter.exported == 2
    assert exporter.dropped_failed >= 1


def test_the_end_of_the_process_does_not_wait_for_a_dead_collector(run: Run) -> None:
    destination = Destination(*(SendError("down", is_temporary=True) for _ in range(1000)))
    exporter = run(destination)
    exporter.export(make_trace())
    exporter.stop()
    assert destination.is_closed
    assert exporter.dropped_failed == 1
