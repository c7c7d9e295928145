"""Runs over HTTP/2 against a server on the h2 library."""

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from data_layer.certificates import make_ca, make_leaf

from epp.lab.load import LoadPlan, run
from epp.lab.load.http2_frames import FrameReader

from .h2_server import H2Connection, H2Server, running, send_response
from .model_server import http_response

MakePlan = Callable[..., LoadPlan]


async def test_requests_share_connections_up_to_the_limit_of_streams(make_plan: MakePlan) -> None:
    async with running(H2Server(send_response, max_streams=4)) as server:
        plan = make_plan(
            server.url, http_version=2, concurrency=10, requests=60, stream=False,
            headers=(("X-Tenant", "t1"),),
        )  # fmt: skip
        report = await run(plan)
    assert report.errors == {}
    assert report.output_tokens == 60 * 7
    assert report.endpoints == {"server-a": 60}
    assert server.peak_streams <= 4
    assert server.connections == 3  # 10 clients, 4 streams each
    headers, body = server.requests[0]
    assert headers[":method"] == "POST"
    assert headers[":path"] == "/v1/completions"
    assert headers[":authority"] == server.url.removeprefix("http://")
    assert headers["x-tenant"] == "t1"
    assert headers["content-length"] == str(len(body))
    assert json.loads(body)["model"] == "m"
    ids = {headers["x-request-id"] for headers, _ in server.requests}
    assert ids == {record.request_id for record in report.records}
    assert len(ids) == 60


async def test_a_body_waits_for_the_windows_of_the_server(make_plan: MakePlan) -> None:
    async with running(H2Server(send_response, window=1000)) as server:
        plan = make_plan(
            server.url, http_version=2, requests=3, concurrency=3, stream=False,
            prompt_chars=200_000,
        )  # fmt: skip
        report = await run(plan)
    assert report.errors == {}
    assert {len(json.loads(body)["prompt"]) for _, body in server.requests} == {200_000}


async def test_long_headers_are_continued_and_events_are_timed(make_plan: MakePlan) -> None:
    def respond(connection: H2Connection, stream_id: int) -> None:
        h2 = connection.h2
        h2.send_headers(stream_id, [(":status", "103"), ("link", "x")])
        h2.send_headers(
            stream_id,
            [(":status", "200"), ("content-type", "text/event-stream"), *9 * [("x", "y" * 4000)]],
        )
        h2.send_data(stream_id, b'data: {"choices":[{"text":"a"}]}\n\n', pad_length=9)
        h2.send_data(stream_id, b'data: {"choices":[{"text":"b"}]}\n\ndata: [DONE]\n\n')
        h2.send_headers(stream_id, [("trailer", "x")], end_stream=True)

    async with running(H2Server(respond)) as server:
        headers = (("x-long", "z" * 40_000),)
        plan = make_plan(server.url, http_version=2, requests=2, headers=headers)
        report = await run(plan)
    assert report.errors == {}
    assert [len(record.token_times) for record in report.records] == [2, 2]
    assert len(server.requests[0][0]["x-long"]) == 40_000


def refuses(connection: H2Connection, stream_id: int) -> None:
    connection.h2.reset_stream(stream_id, 7)


def leaves(connection: H2Connection, stream_id: int) -> None:
    connection.h2.close_connection(last_stream_id=0)


def hangs(connection: H2Connection, stream_id: int) -> None:
    """Say nothing."""


def closes(connection: H2Connection, stream_id: int) -> None:
    connection.transport.close()


@pytest.mark.parametrize(
    ("respond", "kind", "message"),
    [
        (refuses, "reset", "the server reset the stream: REFUSED_STREAM"),
        (leaves, "reset", "the server is going away: NO_ERROR"),
        (closes, "reset", "closed before the end of the response"),
        (hangs, "timeout", "within 0.1 s"),
        (
            lambda connection, stream_id: connection.send(stream_id, b"", status="500"),
            "http-500",
            "HTTP 500 without a body",
        ),
    ],
)
async def test_failures_are_counted_and_the_run_goes_on(
    make_plan: MakePlan, respond: Callable[[H2Connection, int], None], kind: str, message: str
) -> None:
    timeout = 0.1 if kind == "timeout" else 10.0
    async with running(H2Server(respond)) as server:
        plan = make_plan(server.url, http_version=2, requests=4, timeout_seconds=timeout)
        report = await run(plan)
    assert report.errors.keys() == {kind}
    assert report.errors[kind].count == 4
    assert message in report.errors[kind].first_message


async def test_who_leaves_early_resets_the_stream_and_keeps_the_connection(
    make_plan: MakePlan,
) -> None:
    def respond(connection: H2Connection, stream_id: int) -> None:
        connection.h2.send_headers(stream_id, [(":status", "200")])
        connection.h2.send_data(stream_id, b"data: ")

    async with running(H2Server(respond)) as server:
        plan = make_plan(server.url, http_version=2, requests=5, abort_share=1.0)
        report = await run(plan)
        assert report.left_early == 5
        assert server.connections == 1
        assert server.resets[:4] == [8] * 4  # CANCEL


async def test_a_response_before_the_end_of_the_body_ends_the_exchange(
    make_plan: MakePlan,
) -> None:
    class Impatient(H2Connection):
        def data_received(self, data: bytes) -> None:
            for event in self.h2.receive_data(data):
                if type(event).__name__ == "RequestReceived":
                    self.send(1, b"too long", status="413")
            self.flush()

    loop = asyncio.get_running_loop()
    server = H2Server(send_response)
    listening = await loop.create_server(lambda: Impatient(server), "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        plan = make_plan(f"http://127.0.0.1:{port}", http_version=2, prompt_chars=300_000)
        report = await run(plan)
    assert report.errors["http-413"].first_message == "too long"


async def test_a_server_of_http_1_is_told_apart(
    make_plan: MakePlan,
) -> None:
    server = await asyncio.start_server(_says_http_1, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        report = await run(make_plan(f"http://127.0.0.1:{port}", http_version=2, requests=2))
    assert "not valid HTTP/2: the server begins with b'HTTP/1.1 400" in (
        report.errors["malformed"].first_message
    )


async def _says_http_1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)
    writer.write(http_response(b"no", status="400 Bad Request"))
    writer.close()


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's context with a certificate that the client trusts."""
    authority = make_ca()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_leaf(authority, tmp_path, address="127.0.0.1"))
    return context


async def test_tls_asks_for_http_2_by_alpn(make_plan: MakePlan, trusted: ssl.SSLContext) -> None:
    trusted.set_alpn_protocols(["h2"])
    async with running(H2Server(send_response), trusted) as server:
        report = await run(make_plan(server.url, http_version=2, requests=3, stream=False))
    assert (report.succeeded, report.errors) == (3, {})
    assert server.requests[0][0][":scheme"] == "https"


async def test_tls_without_http_2_is_an_error(make_plan: MakePlan, trusted: ssl.SSLContext) -> None:
    async with running(H2Server(send_response), trusted) as server:
        report = await run(make_plan(server.url, http_version=2))
    assert "does not offer HTTP/2" in report.errors["connect"].first_message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00\x00\x00\x01" + bytes(5), "the server begins with"),
        (b"\xff\x00\x00\x04" + bytes(5), "a frame of 16711680 bytes"),
        (b"\x00\x00\x00\x04" + bytes(5) + b"\x00\x00\x02\x08" + bytes(7), "WINDOW_UPDATE of 2"),
        (b"\x00\x00\x00\x04" + bytes(5) + b"\x00\x00\x00\x09" + bytes(5), "interrupted"),
        (b"\x00\x00\x00\x04" + bytes(5) + b"\x00\x00\x01\x00\x08\0\0\0\x01\x05", "padding longer"),
    ],
)
def test_frames_that_are_not_http_2_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrameReader(lambda _frame: None).feed(data)


def test_frames_are_found_however_the_bytes_are_cut() -> None:
    wire = b"\x00\x00\x00\x04" + bytes(5) + b"\x00\x00\x03\x00\x01\0\0\0\x01abc"
    for cut in range(1, 12):
        seen: list[bytes] = []
        reader = FrameReader(lambda frame, seen=seen: seen.append(frame.payload))  # type: ignore[misc]
        for at in range(0, len(wire), cut):
            reader.feed(wire[at : at + cut])
        assert seen == [b"", b"abc"]
