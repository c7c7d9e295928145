"""Cost and number of each function call on the request path.

Each call is timed alone, repeatedly, with the arguments of recorded requests; a profiler on the
whole path counts the calls per request. The products add up to the time of the whole path, except
for the code between the calls, which is shown as the difference.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle, pairwise, repeat
from typing import Any

from epp.app import App
from epp.ext_proc import processing_request, processing_response
from epp.ext_proc.response_head import status_of
from epp.observability import CanonicalLine, PluginWatch
from epp.observability.metric_children import Counter as HotCounter
from epp.observability.metric_children import Gauge, Histogram
from epp.observability.request_metrics import Requests
from epp.request_control import DataProducer, Decision, EndCause, RoutedRequest
from epp.request_control.prepared_request import PreparedRequest
from epp.request_control.producer_run import ProducerRun
from epp.request_control.request_log import finished_line
from epp.scheduling import (
    CycleState,
    LLMRequest,
    PostSchedule,
    Reservation,
    Scheduler,
    SchedulingResult,
)
from epp.transport.http2 import DataReceived, Http2Connection
from epp.transport.http2.sender import Sender
from tools.bench import stacks, wire_bytes
from tools.bench.bare_server import replies
from tools.bench.calls import Call, call_counter, name_of, ns_of
from tools.bench.cycle import build_graph, produce
from tools.bench.gateways import Case, Reads
from tools.bench.in_process import Path, new_app, refresh, silenced

_MESSAGES = 5000
"""A call is timed with the arguments of requests with so many messages before the clock is read
again; of long ones as many as have so many bytes."""
_BYTES = 40_000_000
_RESPONSE = bytes(200)
_RESPONSE_HEADERS = b"\x88"


async def measure(case: Case, reads: Reads, path: Path, repeats: int) -> list[Call]:
    """Return the calls of one request; inside a running loop.

    Args:
        case: The kind of request.
        reads: What Envoy sent for one.
        path: The whole path of the same case, for what lies between the calls.
        repeats: How often each call is timed; the least time counts.
    """
    with silenced("info"):
        app = new_app()
        counts = await call_counter(app, reads)
        request_bytes = sum(map(len, wire_bytes.messages_of(reads)))
        count = min(_MESSAGES // path.messages, _BYTES // request_bytes)
        requests = [wire_bytes.messages_of(r) for r in wire_bytes.distinct(reads, 0, count)]
        calls = [
            *_http2(reads, count, repeats, counts),
            *_above_transport(case, app, requests, repeats, counts),
        ]
    reply = replies(case.mode, cycle(["10.0.0.1:8000"]))
    handler_us = ns_of(reply, [(m,) for m in requests[0]] * 500, repeats) * len(requests[0]) / 1000
    transport_us = path.bare_us - handler_us - sum(c.us for c in calls if c.part == stacks.HTTP2)
    calls.insert(2, Call(stacks.GRPC, "the rest of the bare path", transport_us * 1000, 1))
    between_us = path.epp_us - sum(call.us for call in calls)
    calls.append(Call(stacks.GLUE, "what lies between the calls", between_us * 1000, 1))
    return [call for call in calls if call.per_request]


def _http2(
    reads: Reads, count: int, repeats: int, counts: Callable[..., float]
) -> tuple[Call, Call]:
    received: list[float] = []
    answered: list[float] = []
    for is_answered, times in ((False, received), (True, answered)):
        fed = [
            read
            for stream_id in range(1, 2 * count, 2)
            for read in (*wire_bytes.request(reads, stream_id), wire_bytes.reset(stream_id))
        ]
        for _ in range(repeats):
            # Resets before any reply count as a flood; a new connection forgives them.
            connection = Http2Connection()
            connection.receive(wire_bytes.greeting())
            exchange = _answered if is_answered else Http2Connection.receive
            began = time.process_time()
            for read in fed:
                exchange(connection, read)
            times.append((time.process_time() - began) / count * 1e9)
            if connection.is_closed:
                raise RuntimeError("the bytes ended their connection")
    receive_ns, both_ns = min(received), min(answered)
    reads_each, sent = counts(Http2Connection.receive), counts(Sender.takes_frame)
    return (
        Call(stacks.HTTP2, "Connection.receive", receive_ns / reads_each, reads_each),
        Call(
            stacks.HTTP2,
            "Connection.send_headers, send_data, take_output",
            (both_ns - receive_ns) / sent,
            sent,
        ),
    )


def _answered(connection: Http2Connection, read: bytes) -> None:
    for event in connection.receive(read):
        if type(event) is DataReceived:
            if not event.stream.has_sent_data:
                connection.send_headers(event.stream, _RESPONSE_HEADERS)
            connection.send_data(event.stream, _RESPONSE)
    connection.take_output()


def _above_transport(
    case: Case,
    app: App,
    requests: Sequence[Sequence[bytes]],
    repeats: int,
    counts: Callable[..., float],
) -> list[Call]:
    one = {
        kind: content for kind, content, _ in map(processing_request.decode, reversed(requests[0]))
    }
    headers, _, _ = one["request_headers"]
    bodies = [
        b"".join(c[0] for k, c, _ in map(processing_request.decode, each) if k == "request_body")
        for each in requests
    ]
    arguments = [("a-request", headers, body) for body in bodies]
    read = app.pool.director.pipeline.request_parser.parse
    chunk = one["response_body"][0] if "response_body" in one else bodies[0]
    metrics = app.metrics.for_request("m", "m", "f", 0)
    plugin = next(iter(app.pool.graph.plugins.values()))
    time_plugin = PluginWatch(app.metrics).timer("Scorer", plugin)
    routed = partial(processing_response.routed, on_body=case.mode.value == "adaptive")
    echoed_request = partial(processing_response.echoed_request, end_of_stream=False)
    echoed_chunk = partial(processing_response.echoed_chunk, end_of_stream=False)
    observe, count_up = metrics.duration.observe, metrics.total.inc
    label = app.metrics.for_request
    of_plugins = counts(time_plugin)
    times = _MESSAGES

    def timed(
        part: str, call: Callable[..., object], every: Iterable[tuple[Any, ...]], per: float
    ) -> Call:
        return Call(part, name_of(call), ns_of(call, list(every), repeats) if per else 0.0, per)

    protobuf = (
        timed(
            stacks.PROTOBUF,
            processing_request.decode,
            ((message,) for each in requests for message in each),
            counts(processing_request.decode),
        ),
        *(
            timed(stacks.PROTOBUF, call, [argument] * times, counts(call))
            for call, argument in (
                (status_of, (one["response_headers"].headers,)),
                (routed, ("10.0.0.1:8000",)),
                (echoed_request, (bodies[0],)),
                (echoed_chunk, (chunk,)),
            )
        ),
    )
    observed = counts(Histogram.observe)
    counted = counts(HotCounter.inc) + counts(Gauge.inc) + counts(Gauge.dec)
    parsed = [read(*each).request for each in arguments]
    return [
        *protobuf,
        timed(stacks.PARSE, read, arguments, counts(read)),
        *_schedule(app, parsed, repeats, counts),
        timed(stacks.METRICS, time_plugin, [(1e-5,)] * times, of_plugins),
        timed(stacks.METRICS, observe, [(0.0123,)] * times, observed),
        timed(stacks.METRICS, count_up, repeat((), times), counted),
        timed(stacks.METRICS, label, [("m", "m", "f", 0)] * times, counts(Requests.dispatched)),
    ]


def _schedule(
    app: App, requests: Sequence[LLMRequest], repeats: int, counts: Callable[..., float]
) -> list[Call]:
    """Time the cycle, the reservation and the log line; each takes what the one before made."""
    graph, endpoints = build_graph(None), app.pool.store.snapshot
    producers = graph.implementing(DataProducer)
    (hook,) = graph.implementing(PostSchedule)
    made = graph.scheduler
    # Without its hooks: they have a row of their own.
    schedule = Scheduler(made.handler, made.profiles, guards=graph.guards).schedule
    metrics = app.metrics.for_request("m", "m", "f", 0)
    line = CanonicalLine("request finished")
    now = time.monotonic()

    def produced(request: LLMRequest) -> CycleState:
        state = CycleState()
        produce(producers, request, endpoints, state)
        return state

    pipeline = app.pool.director.pipeline

    def reserved(request: LLMRequest, state: CycleState, result: SchedulingResult) -> RoutedRequest:
        endpoint = result.endpoints[0].endpoint
        decision = Decision(
            request,
            endpoints,
            result,
            endpoint,
            endpoint.address,
            {},
            now,
            now,
            0,
            0,
            0.0,
            None,
            Reservation(endpoint.load, now),
            (),
            {},
            None,
            (),
        )
        run = ProducerRun((), request, state)
        prepared = PreparedRequest(pipeline, run, None, None, now, None)
        exchange = RoutedRequest(app.pool.director._live, decision, prepared, pipeline, metrics)
        exchange.response_started(200)
        decision.reservation.release(now)
        return exchange

    def logged(exchange: RoutedRequest) -> None:
        line.write(finished_line(exchange, EndCause.COMPLETED, now))

    spent: list[list[float]] = []
    for _ in range(repeats):
        clocks = [time.process_time()]
        states = [produced(request) for request in requests]
        clocks.append(time.process_time())
        pairs = list(zip(requests, states, strict=True))
        clocks.append(time.process_time())
        results = [schedule(request, endpoints, state) for request, state in pairs]
        clocks.append(time.process_time())
        triples = list(zip(requests, results, states, strict=True))
        clocks.append(time.process_time())
        for request, result, state in triples:
            hook.post_schedule(request, result, state)
        clocks.append(time.process_time())
        exchanges = [reserved(request, state, result) for request, result, state in triples]
        clocks.append(time.process_time())
        for exchange in exchanges:
            logged(exchange)
        clocks.append(time.process_time())
        spent.append([after - before for before, after in pairwise(clocks)])
        refresh(app)
    seconds = [min(each) for each in zip(*spent, strict=True)]
    rows = (
        (stacks.SCHEDULE, "DataProducer.prepare, attach", 0, type(producers[0]).prepare),
        (stacks.SCHEDULE, "Scheduler.schedule, not observed", 2, Scheduler.schedule),
        (stacks.SCHEDULE, "PostSchedule.post_schedule", 4, type(hook).post_schedule),
        (
            stacks.ACCOUNT,
            "RoutedRequest made, Reservation released",
            5,
            Reservation.release,
        ),
        (stacks.LOG, "finished_line, CanonicalLine.write", 6, CanonicalLine.write),
    )
    return [
        Call(part, name, seconds[at] / len(requests) * 1e9, counts(function))
        for part, name, at, function in rows
    ]
