"""Whole runs over sockets against a server that answers correctly, wrongly, or not at all."""

import asyncio
import io
from collections.abc import Callable

import pytest
import uvloop
from rich.console import Console

from epp.lab.load import LoadPlan, Report, run, run_with_progress
from epp.lab.results import ErrorSummary

from .model_server import Responder, StartServer, http_response, sends

MakePlan = Callable[..., LoadPlan]

JSON_BODY = (
    b'{"id":"x","choices":[{"index":0,"text":"hi","finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":20,"completion_tokens":7,'
    b'"prompt_tokens_details":{"cached_tokens":16}}}'
)
JSON_HEADERS = "content-type: application/json\r\nx-served-by: server-a\r\n"
EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":" two"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":" three"},"finish_reason":"length"}]}\n\n'
)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"X-Gateway-Destination-Endpoint: 10.0.0.1:8000\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunked(data: bytes, size: int = 11) -> bytes:
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def stream_response(body: bytes, *, write_bytes: int = 7) -> Responder:
    """The events in chunks of 11 bytes, written 7 bytes at a time: no cut falls on an event."""
    wire = SSE_HEAD + chunked(body) + b"0\r\n\r\n"
    return sends(*(wire[i : i + write_bytes] for i in range(0, len(wire), write_bytes)))


async def hangs(writer: asyncio.StreamWriter) -> bool:
    await asyncio.Event().wait()
    return False


async def resets(writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


async def test_json_responses_reuse_connections_and_are_counted(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    server = await start_server(sends(http_response(JSON_BODY, headers=JSON_HEADERS)))
    plan = make_plan(
        server.url, concurrency=3, requests=30, stream=False, headers=(("X-Tenant", "t1"),)
    )
    report = await run(plan)
    assert report.errors == {}
    assert (report.sent, report.succeeded) == (30, 30)
    assert report.output_tokens == 30 * 7
    assert (report.prompt_tokens, report.cached_tokens) == (30 * 20, 30 * 16)
    assert report.endpoints == {"server-a": 30}
    assert report.ttft_ms is report.inter_token_ms is None
    assert report.latency_ms is not None
    assert report.latency_ms.count == 30
    assert server.connections == 3
    assert server.peak_in_flight <= 3
    assert len({request["prompt"] for request in server.requests}) == 30
    assert server.heads[0].startswith(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nx-tenant: t1\r\n" in server.heads[0]


@pytest.mark.parametrize("tail", [USAGE + DONE, DONE], ids=["with usage", "without usage"])
async def test_streamed_tokens_are_timed_however_the_bytes_are_cut(
    start_server: StartServer, make_plan: MakePlan, tail: bytes
) -> None:
    server = await start_server(stream_response(EVENTS + tail))
    report = await run(make_plan(server.url, api="chat", requests=5))
    assert report.errors == {}
    assert report.output_tokens == 5 * 3
    assert report.endpoints == {"10.0.0.1:8000": 5}
    assert server.connections == 1
    assert report.first_byte_ms is not None
    assert report.ttft_ms is not None
    assert report.inter_token_ms is not None
    assert report.latency_ms is not None
    assert report.ttft_ms.count == 5
    assert report.inter_token_ms.count == 5 * 2  # three tokens have two gaps
    assert report.first_byte_ms.mean <= report.ttft_ms.mean <= report.latency_ms.mean


@pytest.mark.parametrize(
    ("respond", "kind", "message"),
    [
        pytest.param(
            sends(http_response(b"queue is full", status="503 Service Unavailable")),
            "http-503",
            "queue is full",
            id="status 503",
        ),
        pytest.param(resets, "reset", "", id="connection reset"),
        pytest.param(sends(keep=False), "reset", "closed before", id="closed without a response"),
        pytest.param(
            sends(http_response(JSON_BODY)[:-9], keep=False), "reset", "", id="closed in the body"
        ),
        pytest.param(hangs, "timeout", "within 0.05 s", id="no response at all"),
        pytest.param(sends(b"\x00garbage\r\n\r\n"), "malformed", "HttpParser", id="not HTTP"),
        pytest.param(
            sends(b"HTTP/1.1 101 Up\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"),
            "malformed",
            "Upgrade",
            id="protocol switch",
        ),
        pytest.param(sends(http_response(b"<html>")), "malformed", "response: ", id="not JSON"),
        pytest.param(
            stream_response(EVENTS + b"data: {oops\n\n" + DONE),
            "malformed",
            "event: ",
            id="event that is not JSON",
        ),
        pytest.param(
            stream_response(EVENTS + b'data: {"error":{"message":"out of memory"}}\n\n' + DONE),
            "stream",
            "out of memory",
            id="error in the stream",
        ),
        pytest.param(stream_response(EVENTS), "stream", "DONE", id="stream cut off cleanly"),
    ],
)
async def test_every_failure_is_counted_by_kind_and_the_run_goes_on(
    start_server: StartServer, make_plan: MakePlan, respond: Responder, kind: str, message: str
) -> None:
    server = await start_server(respond)
    # Long enough for a busy machine, unless the timeout is what is tested.
    timeout = 0.05 if kind == "timeout" else 10.0
    report = await run(make_plan(server.url, concurrency=2, requests=4, timeout_seconds=timeout))
    assert report.errors.keys() == {kind}
    assert report.errors[kind].count == report.failed == report.sent == 4
    assert message in report.errors[kind].first_message
    assert report.succeeded == report.output_tokens == 0
    assert report.latency_ms is None


async def test_a_refused_connection_is_counted(make_plan: MakePlan) -> None:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    report = await run(make_plan(f"http://127.0.0.1:{port}", requests=3))
    assert report.errors["refused"].count == 3
    assert report.endpoints == {}


async def test_good_and_bad_responses_are_told_apart(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    count = 0

    async def every_third_fails(writer: asyncio.StreamWriter) -> bool:
        nonlocal count
        count += 1
        if count % 3:
            return await sends(http_response(JSON_BODY, headers=JSON_HEADERS))(writer)
        text = f"overload {count}".encode()
        return await sends(http_response(text, status="429 Too Many Requests"))(writer)

    server = await start_server(every_third_fails)
    report = await run(make_plan(server.url, requests=9, stream=False))
    assert report.errors == {"http-429": ErrorSummary(count=3, first_message="overload 3")}
    assert report.succeeded == 6
    assert report.endpoints == {"server-a": 6, "": 3}
    assert server.connections == 1


async def test_interim_responses_and_bodies_that_end_with_the_connection_are_understood(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
    server = await start_server(sends(head, JSON_BODY, keep=False))
    report = await run(make_plan(server.url, requests=3, stream=False))
    assert report.errors == {}
    assert report.output_tokens == 21
    assert server.connections == 3


@pytest.mark.parametrize("share", [1.0, 0.5])
async def test_early_leavers_close_at_the_first_byte_and_are_no_errors(
    start_server: StartServer, make_plan: MakePlan, share: float
) -> None:
    respond = stream_response(EVENTS + DONE)
    server = await start_server(respond)
    plan = make_plan(server.url, api="chat", requests=40, abort_share=share)
    report = await run(plan)
    again = await run(plan)
    assert report.errors == {}
    assert report.left_early + report.succeeded == 40
    assert report.left_early == again.left_early
    assert report.left_early == 40 if share == 1.0 else 10 < report.left_early < 30
    assert report.first_byte_ms is not None
    assert report.first_byte_ms.count == 40
    assert server.connections >= 2 * report.left_early  # each had to open a new one
    assert report.output_tokens == 3 * report.succeeded


async def test_an_early_leaver_stays_for_an_error(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    server = await start_server(sends(http_response(b"no", status="500 Oops")))
    report = await run(make_plan(server.url, abort_share=1.0))
    assert report.left_early == 0
    assert report.errors == {"http-500": ErrorSummary(count=1, first_message="no")}


async def test_rate_mode_sends_the_right_count_while_nothing_is_answered(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    everybody_here = asyncio.Event()

    async def when_all_have_come(writer: asyncio.StreamWriter) -> bool:
        if len(server.requests) == 30:
            everybody_here.set()
        await everybody_here.wait()
        return await sends(http_response(JSON_BODY))(writer)

    server = await start_server(when_all_have_come)
    report = await run(make_plan(server.url, rate=500.0, requests=30, stream=False))
    assert report.errors == {}
    assert report.succeeded == report.peak_in_flight == len(server.requests) == 30
    assert report.schedule_delay_ms is not None
    assert report.schedule_delay_ms.count == 30


async def test_cancelling_closes_connections_and_reports_what_was(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    stuck = asyncio.Event()

    async def two_then_none(writer: asyncio.StreamWriter) -> bool:
        if len(server.requests) <= 2:
            return await sends(http_response(JSON_BODY))(writer)
        stuck.set()
        return await hangs(writer)

    server = await start_server(two_then_none)
    task = asyncio.create_task(run(make_plan(server.url, requests=9, stream=False)))
    await stuck.wait()
    task.cancel()
    report = await task
    assert report.interrupted
    assert (report.sent, report.succeeded, report.unfinished) == (3, 2, 1)


@pytest.mark.parametrize("terminal", [True, False])
async def test_progress_is_drawn_on_terminals_only(
    start_server: StartServer, make_plan: MakePlan, terminal: bool
) -> None:
    server = await start_server(stream_response(EVENTS + DONE))
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    report = await run_with_progress(make_plan(server.url, api="chat", requests=3), console)
    assert report.succeeded == 3
    output = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert ("3 done" in output) is terminal


def test_it_runs_on_uvloop(make_plan: MakePlan) -> None:
    """Its transports are no subclass of `asyncio.Transport`, which once broke every request."""

    async def respond_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(http_response(JSON_BODY, headers=JSON_HEADERS + "connection: close\r\n"))
        writer.close()

    async def scenario() -> Report:
        server = await asyncio.start_server(respond_once, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await run(make_plan(f"http://127.0.0.1:{port}", requests=2, stream=False))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(scenario())
    assert (report.succeeded, report.errors) == (2, {})
