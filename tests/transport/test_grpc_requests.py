"""Headers of calls and forms of responses, with a client of raw frames.

A refused call must not affect its connection.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from math import inf
from urllib.parse import unquote

import pytest
from structlog.testing import capture_logs

from epp.transport import Stream
from epp.transport.grpc.requests import timeout_seconds
from tools.harness.raw_client import (
    METHOD,
    Echo,
    Idle,
    RawClient,
    Response,
    call,
    connected,
    data,
    fields,
    headers,
    message,
    reset,
    serving,
)


@asynccontextmanager
async def talking(handler: type[Echo] = Echo) -> AsyncIterator[tuple[RawClient, list[Echo]]]:
    """Connect to a server; assert at the end that the connection still works."""
    async with serving(handler) as served, connected(served.port) as client:
        yield client, served.handlers
        client.send(call(1001, b"still here"))
        await client.round_trip()
        served.handlers[-1].stream.finish()
        assert (await client.response(1001)).status == 0
        assert served.handlers[-1].messages == [b"still here"]
        assert client.goaways == []
        assert served.server.open_streams == 0


async def answered(
    given: list[tuple[str, str]], *, end: bool = True
) -> tuple[Response, Mapping[str, str] | None]:
    """Send a message with these headers; return the response and the handler's metadata."""
    async with talking() as (client, handlers):
        client.send(headers(1, given), data(1, message(b"hello"), end=end))
        response = await client.response(1)
        await client.round_trip()
        return response, handlers[0].metadata if handlers else None


# --- methods --------------------------------------------------------------------------------------

PATHS = {
    "unknown service": "/other.Service/Talk",
    "unknown method": "/test.Service/Other",
    "wrong case": METHOD.lower(),
    "slash": "/",
    "no leading slash": METHOD[1:],
    "trailing slash": METHOD + "/",
    "doubled slash": "/" + METHOD,
    "one part": "/Talk",
    "asterisk": "*",
    "query": METHOD + "?a=b",
    "percent": "/test.Service/%54alk",
    "dots": "/test.Service/../test.Service/Talk",
    "blank inside": "/test.Service/Talk again",
    "not ASCII": "/test.Service/T\xe4lk",
    "absolute": "http://localhost" + METHOD,
    "very long": "/" + "x" * 8000,
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
async def test_unknown_path_is_unimplemented(path: str) -> None:
    response, seen = await answered(fields(path))
    assert (response.status, response.is_ended, response.reset) == (12, True, None)
    assert "no method" in response.headers["grpc-message"]
    assert seen is None


async def test_unknown_method_is_refused_before_half_close() -> None:
    async with talking() as (client, _):
        client.send(headers(1, fields("/other.Service/Talk")))
        response = await client.response(1)
        await client.round_trip()
        assert (response.status, response.is_ended, response.reset) == (12, True, 0)
        client.send(data(1, message(b"hello"), end=True))  # was under way


async def test_empty_path_is_malformed_and_resets_its_stream_only() -> None:
    response, seen = await answered(fields(""))
    assert (response.reset, response.blocks) == (1, [])
    assert seen is None


@pytest.mark.parametrize(
    "content_type",
    [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc+json",
        "application/grpc; charset=utf-8",
        "Application/gRPC+Proto",
    ],
)
async def test_content_types_of_grpc_are_accepted(content_type: str) -> None:
    response, _ = await answered(fields(content_type=content_type))
    assert (response.messages, response.status) == ([b"hello"], 0)
    assert response.headers["content-type"] == "application/grpc"


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/json", "application/grpc-web", "application/grpcx"],
)
async def test_other_content_types_are_415(content_type: str | None) -> None:
    response, seen = await answered(fields(content_type=content_type))
    assert (response.headers[":status"], response.is_ended, response.reset) == ("415", True, None)
    assert seen is None


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "post", "X"])
async def test_method_that_is_not_post_is_405(method: str) -> None:
    response, seen = await answered(fields(method=method))
    assert (response.headers[":status"], response.headers["allow"]) == ("405", "POST")
    assert (response.is_ended, response.reset) == (True, None)
    assert seen is None


async def test_get_without_a_body_is_405() -> None:
    async with talking() as (client, _):
        client.send(headers(1, fields(method="GET", content_type=None, te=None), end=True))
        response = await client.response(1)
        assert (response.headers[":status"], response.is_ended) == ("405", True)


async def test_refused_calls_are_counted() -> None:
    async with serving() as served, connected(served.port) as client:
        client.send(headers(1, fields("/"), end=True))
        client.send(headers(3, fields(method="GET"), end=True))
        client.send(headers(5, fields(grpc_encoding="snappy"), end=True))
        await client.response(5)
        assert served.server.counters.grpc.calls_refused == 3


# --- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2H", 7200.0),
        ("3M", 180.0),
        ("4S", 4.0),
        ("5m", 0.005),
        ("6u", 6e-6),
        ("7n", 7e-9),
        ("0S", 0.0),
        ("00000001S", 1.0),
        ("99999999H", 99999999 * 3600.0),
        ("", inf),
        ("5", inf),
        ("S", inf),
        ("-1S", inf),
        ("+1S", inf),
        ("1.5S", inf),
        ("5s", inf),
        ("5h", inf),
        ("100000000S", inf),
        ("5 S", inf),
        ("5S\n", inf),
        ("5SS", inf),
        ("٣S", inf),
        ("0x5S", inf),
    ],
)
def test_timeout_is_up_to_eight_digits_and_a_unit(text: str, seconds: float) -> None:
    assert timeout_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("wait", ["0S", "20m", "20000u", "20000000n", "1n"])
async def test_deadline_ends_the_call_of_an_idle_handler(wait: str) -> None:
    async with talking(Idle) as (client, handlers):
        client.send(headers(1, fields(grpc_timeout=wait)))
        response = await client.response(1)
        await client.round_trip()
        assert (response.status, response.is_ended, response.reset) == (4, True, 0)
        assert (handlers[0].resets, handlers[0].half_closes) == (1, 0)
        client.send(data(1, message(b"late"), end=True))
        await client.round_trip()
        assert (handlers[0].messages, handlers[0].resets) == ([], 1)


async def test_deadline_of_a_finished_call_is_cancelled() -> None:
    loop = asyncio.get_running_loop()
    async with serving() as served, connected(served.port) as client:
        client.send(headers(1, fields(grpc_timeout="99999999H")), data(1, end=True))
        assert (await client.response(1)).status == 0
        client.send(headers(3, fields(grpc_timeout="99999999H")), reset(3))
        await client.round_trip()
        assert [handler.resets for handler in served.handlers] == [0, 1]
        pending = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert max(timer.when() for timer in pending) < loop.time() + 3600
        assert served.server.counters.grpc.deadlines_exceeded == 0


@pytest.mark.parametrize("wait", ["99999999H", "1", "soon", "-1S", "123456789S", ""])
async def test_long_and_malformed_timeouts_change_nothing(wait: str) -> None:
    response, _ = await answered(fields(grpc_timeout=wait))
    assert (response.messages, response.status) == ([b"hello"], 0)


# --- metadata -------------------------------------------------------------------------------------

METADATA = {
    "not ASCII": ("x-a", "\xe4\xf6\xfc \u6c34"),
    "empty": ("x-a", ""),
    "long": ("x-a", "y" * 8000),
    "unpadded -bin": ("x-a-bin", "YQ"),
    "-bin that is no base64": ("x-a-bin", "!!"),
    "tab inside": ("x-a", "b\tc"),
    "odd name": ("x_a.b-c!~", "d"),
    "reserved": ("grpc-something", "1"),
}


@pytest.mark.parametrize("given", METADATA.values(), ids=METADATA)
async def test_odd_metadata_does_not_fail_the_call(given: tuple[str, str]) -> None:
    response, seen = await answered(fields(more=[given]))
    assert (response.messages, response.status) == ([b"hello"], 0)
    assert seen is not None
    assert seen[given[0]] == given[1].encode().decode("latin-1")


async def test_repeated_metadata_has_its_last_value() -> None:
    response, seen = await answered(fields(more=[("x-a", "1"), ("x-a", "2")]))
    assert response.status == 0
    assert seen is not None
    assert seen["x-a"] == "2"


async def test_metadata_cannot_be_changed_by_a_handler() -> None:
    _, seen = await answered(fields(more=[("x-a", "1")]))
    with pytest.raises(TypeError):
        seen["x-a"] = "2"  # type: ignore[index]


async def test_equal_headers_are_parsed_once() -> None:
    async with talking() as (client, handlers):
        await client.round_trip()
        client.send(call(1, b"a"), call(3, b"b"))
        await client.response(3)
        assert handlers[0].metadata is handlers[1].metadata


# --- responses --------------------------------------------------------------------------------


async def test_response_without_messages_is_trailers_only() -> None:
    async with talking() as (client, _):
        client.send(headers(1, end=True))
        response = await client.response(1)
        assert response.blocks == [
            {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
        ]


async def test_response_with_messages_has_its_status_in_trailers() -> None:
    async with talking() as (client, _):
        client.send(call(1, b"a"))
        response = await client.response(1)
        assert response.blocks == [
            {":status": "200", "content-type": "application/grpc"},
            {"grpc-status": "0"},
        ]


class RequestedStatus(Echo):
    """Ends with the status and text that the client sends, separated by a space."""

    def message(self, data: bytes) -> None:
        self.messages.append(data)
        code, _, text = data.decode().partition(" ")
        if code.startswith("+"):
            self.stream.send(b"first")
        self.stream.finish(int(code), text)


async def response_to(text: str) -> Response:
    async with serving(RequestedStatus) as served, connected(served.port) as client:
        client.send(call(1, text.encode()))
        return await client.response(1)


@pytest.mark.parametrize("form", ["13 ", "+13 "], ids=["trailers only", "after a message"])
@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ('plain text, with ~ and " too', 'plain text, with ~ and " too'),
        ("100%", "100%25"),
        ("%41", "%2541"),
        ("two\r\nlines\t\0", "two%0D%0Alines%09%00"),
        ("na\xefve \u6c34 \U0001f600", "na%C3%AFve %E6%B0%B4 %F0%9F%98%80"),
        ("\x7f", "%7F"),
    ],
)
async def test_status_message_is_percent_encoded(form: str, text: str, encoded: str) -> None:
    response = await response_to(form + text)
    assert (response.status, response.is_ended) == (13, True)
    assert response.blocks[-1]["grpc-message"] == encoded
    assert unquote(encoded) == text


async def test_status_message_of_any_length_is_sent() -> None:
    response = await response_to("13 " + "x" * 20000)
    assert response.status == 13
    assert set(response.headers["grpc-message"]) == {"x"}


@pytest.mark.parametrize("code", range(17))
async def test_every_status_code_of_grpc_can_be_sent(code: int) -> None:
    response = await response_to(f"{code} why")
    assert (response.status, response.is_ended) == (code, True)


class Raising(Echo):
    """Raises in the callback that the client names."""

    def __init__(self, stream: Stream, metadata: Mapping[str, str]) -> None:
        super().__init__(stream, metadata)
        if metadata.get("x-fail") == "opened":
            raise ZeroDivisionError

    def message(self, data: bytes) -> None:
        super().message(data)
        if self.metadata.get("x-fail") in ("message", "message and reset"):
            raise ZeroDivisionError

    def half_closed(self) -> None:
        if self.metadata.get("x-fail") == "half_closed":
            raise ZeroDivisionError
        super().half_closed()

    def reset(self) -> None:
        super().reset()
        if self.metadata.get("x-fail") == "message and reset":
            raise ZeroDivisionError


@pytest.mark.parametrize("where", ["opened", "message", "half_closed", "message and reset"])
async def test_exception_of_a_handler_ends_only_its_call(where: str) -> None:
    with capture_logs() as lines:
        await _exception_ends_its_call_alone(where)
    event = "stream could not be opened" if where == "opened" else "stream handler failed"
    assert [line["event"] for line in lines] == [event] * (2 if "and" in where else 1)


async def _exception_ends_its_call_alone(where: str) -> None:
    async with talking(Raising) as (client, handlers):
        client.send(call(1, b"before", end=False))
        client.send(headers(3, fields(x_fail=where)), data(3, message(b"hello"), end=True))
        response = await client.response(3)
        assert (response.status, response.is_ended, response.reset) == (13, True, None)
        assert "ZeroDivision" not in response.blocks[-1]["grpc-message"]
        assert [handler.resets for handler in handlers] == ([0] if where == "opened" else [0, 1])
        client.send(data(1, message(b"after"), end=True))
        response = await client.response(1)
        assert (response.messages, response.status) == ([b"before", b"after"], 0)
