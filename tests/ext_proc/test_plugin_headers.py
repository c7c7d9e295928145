"""Validation of the headers that plugins set."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from epp.ext_proc.plugin_headers import sendable


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("x-tier", "gold", id="plain"),
        pytest.param("x-tier", "", id="an empty value"),
        pytest.param("x-tier", "a\tb", id="a tab"),
        pytest.param("x-tier", "ü \N{PARTY POPPER}", id="not ASCII"),
        pytest.param("x-tier", None, id="removed"),
        pytest.param("!#$%&'*+-.^_`|~09az", "1", id="every kind of character in a name"),
        pytest.param(":path", "/v1/completions", id="a pseudo header"),
    ],
)
def test_a_valid_header_is_sent(name: str, value: str | None) -> None:
    with capture_logs() as lines:
        assert sendable({name: value}, "r-1") == {name: value}
    assert lines == []


@pytest.mark.parametrize("headers", [["x-tier"], "x-tier", 7, {"x-tier"}])
def test_headers_that_are_no_mapping_are_omitted(headers: Any) -> None:
    with capture_logs() as lines:
        assert sendable(headers, "r-1") == {}
    (line,) = lines
    assert (line["event"], line["request_id"]) == ("invalid headers of a plugin omitted", "r-1")
    assert line["problem"].endswith(f"mapping of names to values, not {type(headers).__name__}")


def test_names_are_sent_in_lower_case() -> None:
    assert sendable({"X-Tier": "Gold"}, "r-1") == {"x-tier": "Gold"}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        pytest.param("", "1", "a header name may only have", id="no name"),
        pytest.param("x tier", "1", "a header name may only have", id="a blank in the name"),
        pytest.param("x-tier\n", "1", "a header name may only have", id="a line break in the name"),
        pytest.param("x-größe", "1", "a header name may only have", id="a name that is not ASCII"),
        pytest.param(7, "1", "a header name may only have", id="a number for a name"),
        pytest.param("x-tier", "a\r\nb: c", "line break", id="a line break in the value"),
        pytest.param("x-tier", "a\x00", "control character", id="a zero byte in the value"),
        pytest.param("x-tier", "a\x7f", "control character", id="a delete in the value"),
        pytest.param("x-tier", "\ud800", "cannot be written as UTF-8", id="half a surrogate pair"),
        pytest.param("x-tier", 7, "a string, or None to remove the header, not int", id="7"),
        pytest.param("x-tier", b"a", "must be a string", id="bytes"),
        pytest.param("x-gateway-destination-endpoint", "a", "themselves", id="the destination"),
        pytest.param("X-Gateway-Destination-Endpoint", None, "themselves", id="capitals"),
        pytest.param("content-length", "3", "themselves", id="the length"),
        pytest.param("transfer-encoding", "chunked", "themselves", id="the framing"),
    ],
)
def test_an_invalid_header_is_omitted_and_logged(name: Any, value: Any, problem: str) -> None:
    with capture_logs() as lines:
        assert sendable({"x-before": "1", name: value, "x-after": "2"}, "r-1") == {
            "x-before": "1",
            "x-after": "2",
        }
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("invalid header of a plugin omitted", "error")
    assert (line["request_id"], line["header"]) == ("r-1", name)
    assert problem in line["problem"]
