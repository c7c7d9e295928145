"""Cost of tracing per request, in process: on the event loop, and in the export thread."""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from epp.app import App
from epp.lab.envoy import Mode
from epp.tracing import OtlpSettings, Sampler, TracingSettings
from epp.tracing.exporter import SpanExporter
from epp.tracing.otlp import export_request
from epp.tracing.spans import spans_of
from tools.bench import wire_bytes
from tools.bench.gateways import Case, Reads
from tools.bench.in_process import (
    OPEN_STREAMS,
    Connection,
    check_answered,
    how_many,
    new_app,
    refresh,
    silenced,
)
from tools.bench.tables import named, new_table

CASES = (Case(Mode.ADAPTIVE), Case(Mode.FULL_DUPLEX))
_ENDLESS = 1_000_000


def _settings(ratio: float) -> TracingSettings:
    return TracingSettings(
        sampler=Sampler(ratio), exporter="otlp", otlp=OtlpSettings(), max_queue=_ENDLESS
    )


STATES = (
    ("off", None),
    ("on, traceparent only", TracingSettings(sampler=Sampler(1.0))),
    ("on, not sampled", _settings(0.0)),
    ("on, sampled", _settings(1.0)),
)
"""The requests have no ``traceparent``, so that all but the first send one."""


@dataclass(frozen=True, slots=True)
class Traced:
    """CPU microseconds of a request."""

    case: Case
    loop_us: Sequence[float]
    """On the event loop, by state."""
    export_us: float
    """In the export thread, for a sampled request."""
    spans: float
    """Spans of a sampled request."""


async def measure(case: Case, reads: Reads, repeats: int) -> Traced:
    """Measure all states in turns; of the readings the least counts."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        stack.enter_context(silenced("info"))
        apps = [new_app(settings) for _, settings in STATES]
        connections = [Connection(app.service.opened, loop) for app in apps]
        for connection in connections:
            await connection.feed(connection.prepared([reads] * 2 * OPEN_STREAMS))
        count = await how_many(connections[0], reads)
        times: list[list[float]] = [[] for _ in connections]
        exports: list[float] = []
        spans = 0.0
        for repeat in range(repeats):
            requests = list(wire_bytes.distinct(reads, (repeat + 1) * count, count))
            # Each time another is first: what is first finds other caches.
            order = sorted(range(len(apps)), key=lambda place: (place + repeat) % len(apps))
            for place in order:
                connection = connections[place]
                fed = connection.prepared(requests)
                connection.take()
                began = time.process_time()
                await connection.feed(fed)
                times[place].append((time.process_time() - began) / count * 1e6)
                check_answered(case, reads, count, connection.take())
            export_us, spans = _export(apps[-1])
            exports.append(export_us)
            for app in apps:
                refresh(app)
    return Traced(case, [min(each) for each in times], min(exports), spans)


def _export(app: App) -> tuple[float, float]:
    """Make and encode the spans that wait; return microseconds and spans of a request."""
    assert app._tracing is not None
    exporter = app._tracing._exporter
    assert isinstance(exporter, SpanExporter)
    traces = list(exporter._queue)
    exporter._queue.clear()
    rng = random.Random(1)
    began = time.process_time()
    spans = [span for trace in traces for span in spans_of(trace, rng)]
    export_request(spans, {"service.name": "bench"}, "bench", "1")
    return (time.process_time() - began) / len(traces) * 1e6, len(spans) / len(traces)


def table(measured: Sequence[Traced]) -> Table:
    """Microseconds and shares, one row for each case."""
    made = new_table(
        "Tracing in process, µs per request (share of the first)",
        "case",
        *(name for name, _ in STATES),
        "export thread, sampled",
        "spans",
    )
    for each in measured:
        off = each.loop_us[0]
        made.add_row(
            named(each.case),
            *(f"{us:.1f} ({us / off - 1:+.1%})" for us in each.loop_us),
            f"{each.export_us:.1f} ({each.export_us / off:+.1%})",
            f"{each.spans:.0f}",
        )
    return made
