"""Load reports in response headers: valid reports are read, others do no harm."""

import base64
import json
import struct
from collections.abc import Mapping
from math import isnan, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.pb.xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport
from epp_plugins.data_sources.orca_reports import (
    BINARY_HEADER,
    HEADER,
    MAX_CHARS,
    ReportError,
    metrics_of,
)

NAMED = "named_metrics."
VLLM = {f"{NAMED}kv_cache_usage_perc": 0.4, f"{NAMED}num_requests_waiting": 3.0}


def wire(metrics: Mapping[str, float]) -> str:
    """Encode a report by hand, with the field numbers of xds/data/orca/v3/orca_load_report.proto.

    Every field is a double, wire type 1, or an entry of a map, wire type 2 with 1 = key, 2 = value.
    """
    numbers = {
        "cpu_utilization": 1,
        "mem_utilization": 2,
        "utilization": 5,
        "rps_fractional": 6,
        "eps": 7,
        "named_metrics": 8,
        "application_utilization": 9,
    }
    encoded = b""
    for name, value in metrics.items():
        field, is_entry, key = name.partition(".")
        double = struct.pack("<d", value)
        if is_entry:
            text = key.encode()
            entry = b"\x0a%c%b\x11%b" % (len(text), text, double)
            encoded += b"%c%c%b" % (numbers[field] << 3 | 2, len(entry), entry)
        else:
            encoded += b"%c%b" % (numbers[field] << 3 | 1, double)
    return base64.b64encode(encoded).decode()


EVERYTHING = {
    "cpu_utilization": 0.3,
    "mem_utilization": 0.8,
    "rps_fractional": 10.0,
    "eps": 1.0,
    "application_utilization": 1.25,
    "utilization.disk": 0.5,
    "named_metrics.queue": -2.0,
}
TWO = {"eps": 1.0, "cpu_utilization": 0.2}


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param({}, None, id="no report"),
        pytest.param(
            {
                HEADER: "TEXT named_metrics.kv_cache_usage_perc=0.4,"
                " named_metrics.num_requests_waiting=3.0"
            },
            VLLM,
            id="vLLM's text",
        ),
        pytest.param(
            {
                HEADER: 'JSON {"named_metrics": {"kv_cache_usage_perc": 0.4,'
                ' "num_requests_waiting": 3.0}}'
            },
            VLLM,
            id="vLLM's JSON",
        ),
        pytest.param(
            {
                HEADER: "TEXT named_metrics.kv_cache_utilization=0.980000,"
                " named_metrics.max_token_capacity=1024"
            },
            {f"{NAMED}kv_cache_utilization": 0.98, f"{NAMED}max_token_capacity": 1024},
            id="Triton's text",
        ),
        pytest.param({HEADER: f"BIN {wire(EVERYTHING)}"}, EVERYTHING, id="binary"),
        pytest.param({BINARY_HEADER: wire(EVERYTHING)}, EVERYTHING, id="the binary header"),
        pytest.param(
            {BINARY_HEADER: wire(VLLM).rstrip("=")}, VLLM, id="without padding, as of gRPC"
        ),
        pytest.param(
            {BINARY_HEADER: wire(VLLM), HEADER: "TEXT eps=1"}, VLLM, id="the binary header is first"
        ),
        pytest.param({HEADER: "text eps=1"}, {"eps": 1.0}, id="a format in lower case"),
        pytest.param({HEADER: "TEXT eps:1, cpu_utilization:2e-1"}, TWO, id="colons"),
        pytest.param({HEADER: "eps=1,cpu_utilization=0.2"}, TWO, id="text without its format"),
        pytest.param({HEADER: '{"eps":1,"cpuUtilization":"0.2"}'}, TWO, id="JSON without it"),
        pytest.param(
            {HEADER: 'JSON {"namedMetrics": {"a": 1}, "named_metrics": {"b": 2}}'},
            {f"{NAMED}a": 1.0, f"{NAMED}b": 2.0},
            id="both spellings of protobuf's JSON",
        ),
        pytest.param({HEADER: "TEXT"}, {}, id="text without metrics"),
        pytest.param({HEADER: "JSON {}"}, {}, id="JSON without metrics"),
        pytest.param({HEADER: "BIN"}, {}, id="binary without metrics"),
        pytest.param({BINARY_HEADER: ""}, {}, id="an empty binary header"),
    ],
)
def test_a_report_is_read(headers: Mapping[str, str], want: Mapping[str, float] | None) -> None:
    assert metrics_of(headers) == want


@pytest.mark.parametrize(
    "value",
    [
        "TEXT eps=much",
        "TEXT eps=",
        'JSON {"eps": null}',
        'JSON {"eps": [1]}',
        'JSON {"eps": "NaN"}',
        f'JSON {{"eps": {"9" * 400}}}',
        f"BIN {wire({'eps': nan})}",
    ],
)
def test_a_value_that_is_no_number_is_nan(value: str) -> None:
    metrics = metrics_of({HEADER: value})
    assert metrics is not None
    assert isnan(metrics["eps"])


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        pytest.param({HEADER: "BAD eps"}, "malformed", id="no pair"),
        pytest.param({HEADER: "TEXT eps=1,"}, "malformed", id="a pair too few"),
        pytest.param({HEADER: "JSON"}, "malformed", id="no JSON"),
        pytest.param({HEADER: 'JSON {"eps": 1'}, "malformed", id="half a JSON"),
        pytest.param({HEADER: "JSON [1]"}, "malformed", id="a list"),
        pytest.param({HEADER: "JSON " + "[" * 4000}, "malformed", id="deep JSON"),
        pytest.param({HEADER: "BIN @@@@"}, "malformed", id="no base64"),
        pytest.param({BINARY_HEADER: "é"}, "malformed", id="no ASCII"),
        pytest.param({BINARY_HEADER: "AAAA"}, "malformed", id="no protobuf"),
        pytest.param({BINARY_HEADER: "QgUKAf8RAA=="}, "malformed", id="a name that is no UTF-8"),
        pytest.param({HEADER: f"TEXT {'e' * MAX_CHARS}=1"}, "too-long", id="long text"),
        pytest.param({BINARY_HEADER: "A" * (MAX_CHARS + 1)}, "too-long", id="long base64"),
    ],
)
def test_an_unusable_report_is_refused(headers: Mapping[str, str], outcome: str) -> None:
    with pytest.raises(ReportError) as raised:
        metrics_of(headers)
    assert raised.value.outcome == outcome


KEYS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
VALUES = st.floats(allow_nan=False, allow_infinity=False)
MAPS = st.dictionaries(KEYS, VALUES, max_size=5)
SCALARS = ("cpu_utilization", "mem_utilization", "rps_fractional", "eps", "application_utilization")


@given(st.dictionaries(st.sampled_from(SCALARS), VALUES.filter(bool)), MAPS, MAPS)
def test_all_formats_say_the_same(
    scalars: dict[str, float], utilization: dict[str, float], named: dict[str, float]
) -> None:
    want = {
        **scalars,
        **{f"utilization.{key}": value for key, value in utilization.items()},
        **{f"{NAMED}{key}": value for key, value in named.items()},
    }
    document = {**scalars, "utilization": utilization, "named_metrics": named}
    message = OrcaLoadReport(utilization=utilization, named_metrics=named, **scalars)
    encoded = base64.b64encode(message.SerializeToString()).decode()
    text = ", ".join(f"{name}={value}" for name, value in want.items())
    assert metrics_of({HEADER: f"TEXT {text}"}) == want
    assert metrics_of({HEADER: f"JSON {json.dumps(document)}"}) == want
    assert metrics_of({HEADER: f"BIN {encoded}"}) == want
    assert metrics_of({BINARY_HEADER: encoded}) == want


GARBAGE = st.text(max_size=60) | st.binary(max_size=60).map(
    lambda raw: base64.b64encode(raw).decode()
)


@given(st.sampled_from(["", "TEXT ", "JSON ", "BIN ", "json", "{"]), GARBAGE, st.booleans())
@example("JSON ", '{"a": 1e999}', False)
@example("TEXT ", "a=\ud800", False)
def test_garbage_is_read_or_refused(prefix: str, garbage: str, is_binary: bool) -> None:
    outcome, metrics = "malformed", None
    try:
        metrics = metrics_of({BINARY_HEADER if is_binary else HEADER: prefix + garbage})
    except ReportError as error:
        outcome = error.outcome
    assert outcome == "malformed"
    assert metrics is None or all(type(value) is float for value in metrics.values())
