"""RFC 9113 §8.1 to §8.3: which requests are well-formed; the rest are errors of their stream."""

import pytest

from epp.transport.http2 import DataReceived, ErrorCode, RequestReceived
from transport.http2.wire import REQUEST, Fields, data, headers, literals, make_client

PSEUDO = REQUEST[:4]


def without(name: str) -> Fields:
    return [field for field in REQUEST if field[0] != name]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([], id="nothing"),
        pytest.param(without(":method"), id="no :method"),
        pytest.param(without(":scheme"), id="no :scheme"),
        pytest.param(without(":path"), id="no :path"),
        pytest.param([*without(":path"), (":path", "/x")], id="a pseudo-header after others"),
        pytest.param([(":path", ""), *without(":path")], id="an empty :path"),
        pytest.param([(":path", "/again"), *REQUEST], id=":path twice"),
        pytest.param([(":method", "POST"), *REQUEST], id=":method twice"),
        pytest.param([(":authority", "b"), *REQUEST], id=":authority twice"),
        pytest.param([(":status", "200"), *REQUEST], id="a pseudo-header of responses"),
        pytest.param([(":magic", "x"), *REQUEST], id="an unknown pseudo-header"),
        pytest.param([(":protocol", "websocket"), *REQUEST], id=":protocol, never offered"),
        pytest.param([(":", "x"), *REQUEST], id="a pseudo-header without a name"),
        pytest.param([*REQUEST, ("Upper", "x")], id="an upper-case name"),
        pytest.param([*REQUEST, ("", "x")], id="an empty name"),
        pytest.param([*REQUEST, ("a b", "x")], id="a blank in a name"),
        pytest.param([*REQUEST, ("a\0", "x")], id="a NUL in a name"),
        pytest.param([*REQUEST, ("a:b", "x")], id="a colon in a name"),
        pytest.param([*REQUEST, ("n\xe4me", "x")], id="a name that is not ASCII"),
        pytest.param([*REQUEST, ("a", "x\0y")], id="a NUL in a value"),
        pytest.param([*REQUEST, ("a", "x\ny")], id="a line feed in a value"),
        pytest.param([*REQUEST, ("a", "x\ry")], id="a carriage return in a value"),
        pytest.param([*REQUEST, ("a", " x")], id="a blank before a value"),
        pytest.param([*REQUEST, ("a", "x\t")], id="a tab after a value"),
        pytest.param([*REQUEST, ("connection", "close")], id="connection"),
        pytest.param([*REQUEST, ("keep-alive", "1")], id="keep-alive"),
        pytest.param([*REQUEST, ("proxy-connection", "close")], id="proxy-connection"),
        pytest.param([*REQUEST, ("transfer-encoding", "chunked")], id="transfer-encoding"),
        pytest.param([*REQUEST, ("upgrade", "h2c")], id="upgrade"),
        pytest.param([*without("te"), ("te", "gzip")], id="te other than trailers"),
        pytest.param([*REQUEST, ("content-length", "")], id="an empty content-length"),
        pytest.param([*REQUEST, ("content-length", "-1")], id="a negative content-length"),
        pytest.param([*REQUEST, ("content-length", "1,1")], id="a list of content-lengths"),
        pytest.param(
            [*REQUEST, ("content-length", "\xb2")], id="a content-length that is no digit"
        ),
        pytest.param(
            [*REQUEST, ("content-length", "1"), ("content-length", "2")], id="content-length twice"
        ),
        pytest.param([(":method", "CONNECT"), (":authority", "x:1")], id="CONNECT, not offered"),
    ],
)
def test_a_malformed_request_is_a_stream_error(fields: Fields) -> None:
    client = make_client()

    client.assert_reset(1, ErrorCode.PROTOCOL_ERROR, headers(1, literals(fields)))

    assert client.events == []
    assert client.counters.stream_faults == 1
    assert client.request(3).id == 3


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(without(":authority"), id="no :authority"),
        pytest.param(without("te"), id="no te"),
        pytest.param([*REQUEST, ("x-empty", "")], id="an empty value"),
        pytest.param([*REQUEST, ("x-obs", "\xff\x80")], id="a value that is not ASCII"),
        pytest.param([*REQUEST, ("x-inner", "a b\tc")], id="blanks inside a value"),
        pytest.param([*REQUEST, ("cookie", "a=1"), ("cookie", "b=2")], id="a field twice"),
        pytest.param([*REQUEST, ("!#$%&'*+-.^_`|~09", "x")], id="any character of names"),
        pytest.param(
            [*REQUEST, ("content-length", "7"), ("content-length", "07")], id="one length twice"
        ),
        pytest.param([(":method", "GET"), *PSEUDO[1:]], id="another method"),
        pytest.param([(":path", "*"), *without(":path")], id="a path that is none"),
    ],
)
def test_an_unusual_request_is_accepted(fields: Fields) -> None:
    (event,) = make_client().send(headers(1, literals(fields)))

    assert isinstance(event, RequestReceived)
    expected = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in fields)
    assert event.headers.fields == expected


@pytest.mark.parametrize(
    "trailers",
    [
        pytest.param([(":path", "/x")], id="a pseudo-header"),
        pytest.param([("Upper", "x")], id="an upper-case name"),
        pytest.param([("a", "x\ny")], id="a line feed"),
        pytest.param([("connection", "close")], id="a field of HTTP/1.1"),
    ],
)
def test_malformed_trailers_are_a_stream_error(trailers: Fields) -> None:
    client = make_client()
    client.request(1)

    client.assert_reset(1, ErrorCode.PROTOCOL_ERROR, headers(1, literals(trailers), end=True))


def test_trailers_are_the_end_of_the_request() -> None:
    client = make_client()
    stream = client.request(1)
    client.send(data(1, b"content"))

    (event,) = client.send(headers(1, literals([("checksum", "1")]), end=True))

    assert isinstance(event, DataReceived)
    assert (event.stream, event.data, event.end_stream) == (stream, b"", True)
    assert stream.has_peer_ended


def test_empty_trailers_are_trailers() -> None:
    client = make_client()
    stream = client.request(1)

    (event,) = client.send(headers(1, b"", end=True))
    assert isinstance(event, DataReceived)
    assert (event.stream, event.data, event.end_stream) == (stream, b"", True)


def test_a_second_block_that_does_not_end_the_stream_is_malformed() -> None:
    client = make_client()
    client.request(1)

    client.assert_reset(1, ErrorCode.PROTOCOL_ERROR, headers(1, literals([("a", "b")])))


# --- content-length -------------------------------------------------------------------------------


def announced(length: int) -> Fields:
    return [*REQUEST, ("content-length", str(length))]


def test_content_of_the_announced_length_may_be_split_and_padded() -> None:
    client = make_client()
    client.request(1, announced(6))

    events = client.send(data(1, b"ab", pad=9), data(1), data(1, b"cdef"), data(1, end=True))

    assert [event.data for event in events if isinstance(event, DataReceived)] == [
        b"ab",
        b"cdef",
        b"",
    ]


def test_content_longer_than_announced_is_a_stream_error_at_once() -> None:
    client = make_client()
    client.request(1, announced(3))
    client.send(data(1, b"ab"))

    client.assert_reset(1, ErrorCode.PROTOCOL_ERROR, data(1, b"cd"))


@pytest.mark.parametrize("last", ["data", "trailers"])
def test_content_shorter_than_announced_is_a_stream_error_at_its_end(last: str) -> None:
    client = make_client()
    client.request(1, announced(3))
    client.send(data(1, b"ab"))

    end = data(1, end=True) if last == "data" else headers(1, b"", end=True)
    client.assert_reset(1, ErrorCode.PROTOCOL_ERROR, end)


def test_an_announced_length_without_content_is_a_stream_error() -> None:
    client = make_client()

    client.assert_reset(1, ErrorCode.PROTOCOL_ERROR, headers(1, announced(3), end=True))


def test_content_length_0_without_content_is_valid() -> None:
    assert make_client().request(1, announced(0), end=True).has_peer_ended


def test_trailers_after_the_announced_length_are_valid() -> None:
    client = make_client()
    client.request(1, announced(2))

    events = client.send(data(1, b"ab"), headers(1, b"", end=True))

    assert [getattr(event, "end_stream", None) for event in events] == [False, True]


def test_a_huge_content_length_allocates_nothing() -> None:
    client = make_client()
    client.request(1, [*REQUEST, ("content-length", "9" * 18)])

    client.assert_reset(3, ErrorCode.PROTOCOL_ERROR, headers(3, announced(10**18)))
