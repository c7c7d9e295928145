"""Third-party HTTP/2 clients: nghttp2's h2load and nghttp, and curl.

They POST gRPC messages from a file to server processes. Whether a call succeeded is told by the
servers' counters and by the responses, as every gRPC response has HTTP status 200.
"""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from system import tools

from epp.ext_proc import METHOD
from epp.lab.envoy import Mode
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.bench import processes
from tools.bench.processes import Running
from tools.soak import frames, server
from tools.soak.connection import RawConnection

GRPC = ("content-type: application/grpc", "te: trailers")
HEADER_OPTIONS = tuple(text for header in GRPC for text in ("-H", header))
LEAN = server.method(Mode.LEAN)

pytestmark = pytest.mark.integration

MakeBody = Callable[[bytes], Path]


@pytest.fixture
async def bare() -> AsyncIterator[Running]:
    """The transport with a handler that answers as the EPP does."""
    async with processes.python("-m", "tools.soak.server") as running:
        yield running


@pytest.fixture
async def epp() -> AsyncIterator[Running]:
    """A whole endpoint picker."""
    async with (
        processes.upstream(2) as upstream,
        processes.epp(upstream.ready["endpoints"]) as running,
    ):
        yield running


@pytest.fixture
def make_body(tmp_path: Path) -> MakeBody:
    """Writes a file with the gRPC messages of a request that has a given body."""

    def make(body: bytes) -> Path:
        path = tmp_path / f"request-{len(body)}"
        messages = frames.request_messages(Mode.LEAN, body)
        path.write_bytes(b"".join(map(frames.message, messages)))
        return path

    return make


def url(running: Running, path: str) -> str:
    return f"http://127.0.0.1:{running.ready['grpc']}{path}"


async def counters(running: Running) -> dict[str, int]:
    connection = await RawConnection.connect(running.ready["grpc"])
    found = msgspec.json.decode(await connection.call(server.STATISTICS, b""))
    connection.abort()
    assert found["waiting_bytes"] == found["buffered_bytes"] == 0
    assert found["open_streams"] == 1  # that of this call
    http2: dict[str, int] = found["counters"]["http2"]
    return http2


async def metric(running: Running, name: str) -> float:
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"http://127.0.0.1:{running.ready['metrics']}/metrics")).text
    found = re.findall(rf"^llm_d_epp_{name}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


def replies(content: bytes) -> list[str | None]:
    """The kinds of the ext_proc replies in a response's content."""
    kinds = []
    while content:
        assert content[0] == 0
        size = int.from_bytes(content[1:5], "big")
        response = pb.ProcessingResponse.FromString(content[5 : 5 + size])
        kinds.append(response.WhichOneof("response"))
        content = content[5 + size :]
    return kinds


def succeeded(report: str, requests: int) -> None:
    """h2load must have seen every response whole."""
    expected = f"{requests} total, {requests} started, {requests} done, {requests} succeeded"
    assert f"requests: {expected}, 0 failed, 0 errored, 0 timeout" in report
    assert f"status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx" in report


@pytest.mark.parametrize(
    ("load", "body_bytes"),
    [
        pytest.param((20_000, 4, 1), 500, id="one stream after the other"),
        pytest.param((20_000, 4, 100), 500, id="100 streams at once"),
        pytest.param((4_000, 1, 1000), 500, id="1,000 streams at once"),
        pytest.param((300, 2, 20), 500_000, id="half a megabyte each way"),
    ],
)
async def test_h2load_gets_every_response_from_the_bare_transport(
    bare: Running, make_body: MakeBody, load: tuple[int, int, int], body_bytes: int
) -> None:
    body = make_body(frames.completion("x" * body_bytes))
    requests, clients, streams = load
    options = ("-n", requests, "-c", clients, "-m", streams, "-d", body)
    succeeded(await tools.output("h2load", *options, *HEADER_OPTIONS, url(bare, LEAN)), requests)
    http2 = await counters(bare)
    assert http2["streams_answered"] == requests
    assert http2["streams_opened"] == requests + 1
    assert http2["stream_faults"] == http2["streams_refused"] == http2["streams_reset_early"] == 0
    assert not http2["connection_faults"]


async def test_h2load_with_small_windows_gets_every_response(
    bare: Running, make_body: MakeBody
) -> None:
    body = make_body(frames.completion("x" * 100_000))
    # Windows of 2^10 - 1 bytes a stream and 2^16 - 1 for the connection.
    load = ("-n", 200, "-c", 2, "-m", 10, "-w", 10, "-W", 16, "-d", body)
    succeeded(await tools.output("h2load", *load, *HEADER_OPTIONS, url(bare, LEAN)), 200)
    assert (await counters(bare))["streams_answered"] == 200


async def test_h2load_gets_every_request_routed_by_the_endpoint_picker(
    epp: Running, make_body: MakeBody
) -> None:
    body = make_body(frames.completion("Hello " * 80))
    load = ("-n", 10_000, "-c", 4, "-m", 50, "-d", body)
    report = await tools.output("h2load", *load, *HEADER_OPTIONS, url(epp, METHOD))
    succeeded(report, 10_000)
    assert await metric(epp, "request_total") == 10_000
    assert await metric(epp, "scheduler_attempts_total") == 10_000
    assert await metric(epp, "internal_faults_total") == 0
    assert await metric(epp, "request_running") == 0


async def test_nghttp_shows_our_settings_the_responses_and_the_status(
    bare: Running, make_body: MakeBody
) -> None:
    body = make_body(frames.completion("Hello"))
    shown = await tools.output("nghttp", "-v", "-d", body, *HEADER_OPTIONS, url(bare, LEAN))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    settings = shown[shown.index("recv SETTINGS") :]
    assert "SETTINGS_HEADER_TABLE_SIZE(0x01):0]" in settings
    assert "SETTINGS_MAX_CONCURRENT_STREAMS(0x03):10000]" in settings
    for header in (":status: 200", "content-type: application/grpc", "grpc-status: 0"):
        assert re.search(rf"recv \(stream_id=\d+\) {header}\n", shown), header
    assert shown.index("recv DATA frame") < shown.index("grpc-status: 0")
    assert "RST_STREAM" not in shown


async def test_nghttp_is_answered_on_streams_with_padding_and_priorities(
    bare: Running, make_body: MakeBody
) -> None:
    body = make_body(frames.completion("Hello"))
    options = ("-v", "-m", 10, "-b", 200, "-d", body)
    shown = await tools.output("nghttp", *options, *HEADER_OPTIONS, url(bare, LEAN))
    assert "send PRIORITY frame" in shown
    assert "(padlen=200)" in shown
    assert shown.count("grpc-status: 0") == 10
    assert (await counters(bare))["streams_answered"] == 10


async def test_nghttp_gets_431_for_headers_that_need_continuation_and_its_connection_stays(
    bare: Running, make_body: MakeBody
) -> None:
    body = make_body(frames.completion("Hello"))
    options = ("-v", "-m", 3, "--continuation", "-d", body)
    shown = await tools.output("nghttp", *options, *HEADER_OPTIONS, url(bare, LEAN))
    assert shown.count(":status: 431") == 3
    assert "recv GOAWAY" not in shown
    http2 = await counters(bare)
    assert http2["header_lists_refused"] == 3
    assert not http2["connection_faults"]


async def curl_is_answered(target: str, body: Path, folder: Path) -> None:
    headers, content = folder / "headers", folder / "content"
    await tools.output(
        "curl",
        *("--http2-prior-knowledge", "-sS", "-D", headers, "-o", content),
        *("--data-binary", f"@{body}"),
        *HEADER_OPTIONS,
        target,
    )
    # curl writes trailers after the headers.
    first, _, trailers = headers.read_text().partition("\n\n")
    assert first.startswith("HTTP/2 200")
    assert "content-type: application/grpc" in first
    assert "grpc-status: 0" in trailers
    assert replies(content.read_bytes()) == ["request_headers", "request_body"]


async def test_curl_gets_both_responses_and_the_status_in_trailers(
    bare: Running, make_body: MakeBody, tmp_path: Path
) -> None:
    body = make_body(frames.completion("Hello"))
    await curl_is_answered(url(bare, LEAN), body, tmp_path)


async def test_curl_is_routed_by_the_endpoint_picker(
    epp: Running, make_body: MakeBody, tmp_path: Path
) -> None:
    body = make_body(frames.completion("Hello"))
    await curl_is_answered(url(epp, METHOD), body, tmp_path)


async def test_curl_gets_415_for_another_content_type_and_the_reason_of_an_unknown_method(
    bare: Running,
) -> None:
    # Without a body: curl 7.88 fails now and then (92) where RST_STREAM NO_ERROR, which follows a
    # response that does not wait for the request's end (RFC 9113 §8.1), comes before that is sent.
    curl = ("--http2-prior-knowledge", "-sS", "-i", "-d", "")
    plain = await tools.output("curl", *curl, "-H", "content-type: text/plain", url(bare, LEAN))
    assert plain.startswith("HTTP/2 415")
    unknown = await tools.output("curl", *curl, *HEADER_OPTIONS, url(bare, "/no/method"))
    assert unknown.startswith("HTTP/2 200")
    assert "grpc-status: 12" in unknown
    get = await tools.output("curl", "--http2-prior-knowledge", "-sS", "-i", url(bare, LEAN))
    assert get.startswith("HTTP/2 405")


async def test_http_1_is_hung_up_on_and_others_are_served(
    bare: Running, make_body: MakeBody
) -> None:
    body = make_body(frames.completion("Hello"))
    with pytest.raises(AssertionError, match="curl: "):
        await tools.output("curl", "--http1.1", "-sS", "-m", 3, url(bare, LEAN))
    load = ("-n", 10, "-c", 1, "-d", body)
    succeeded(await tools.output("h2load", *load, *HEADER_OPTIONS, url(bare, LEAN)), 10)
