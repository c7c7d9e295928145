"""Load reports in the headers of a response (ORCA, Open Request Cost Aggregation).

Servers send them in one of three formats, which the header names::

    endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, cpu_utilization=0.3
    endpoint-load-metrics: JSON {"named_metrics": {"kv_cache_usage_perc": 0.4}}
    endpoint-load-metrics: BIN (base64 of an xds.data.orca.v3.OrcaLoadReport)
    endpoint-load-metrics-bin: (the same)

As Envoy does, this module accepts ``:`` in place of ``=``, and prefers the second header. Without a
format the value is text, or JSON if it begins with a brace. JSON may have the names of the fields
in camel case (protobuf's JSON mapping).
"""

from base64 import b64decode
from collections.abc import Callable, Mapping
from math import nan
from typing import Any, Final, Literal

import msgspec
from google.protobuf.message import DecodeError

from epp.pb.xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

FORMAT_HEADER: Final = "endpoint-load-metrics-format"
"""Request header that asks for reports; vLLM and Triton answer with the format that it names."""
HEADER: Final = "endpoint-load-metrics"
BINARY_HEADER: Final = "endpoint-load-metrics-bin"
MAX_CHARS: Final = 4096
"""Maximum length of a report."""

_FIELDS: Final[Mapping[str, str]] = {
    field.json_name: field.name for field in OrcaLoadReport.DESCRIPTOR.fields
}
"""Names of the fields by their names in protobuf's JSON."""

_Reader = Callable[[str], Mapping[str, float]]


class ReportError(Exception):
    """A report cannot be used.

    Args:
        outcome: Value of a metric label, from a closed set.
        text: Description of the error.
    """

    def __init__(self, outcome: Literal["malformed", "too-long", "no-metric"], text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


def metrics_of(headers: Mapping[str, str]) -> Mapping[str, float] | None:
    """Return the metrics of the report in response headers, by their names in the text format.

    A value that is not a number is NaN. None if there is no report.

    Raises:
        ReportError: The report is malformed, or longer than :data:`MAX_CHARS`.
    """
    if BINARY_HEADER in headers:
        return _read(_binary, headers[BINARY_HEADER])
    value = headers.get(HEADER)
    if value is None:
        return None
    prefix, _, content = value.partition(" ")
    reader = _READERS.get(prefix.upper())
    if reader is not None:
        return _read(reader, content)
    return _read(_json if value.startswith("{") else _text, value)


def _read(reader: _Reader, content: str) -> Mapping[str, float]:
    if len(content) > MAX_CHARS:
        raise ReportError("too-long", f"it has {len(content)} characters, more than {MAX_CHARS}")
    try:
        return reader(content)
    except (ValueError, RecursionError, DecodeError) as error:
        raise ReportError("malformed", str(error)) from None


def _text(content: str) -> Mapping[str, float]:
    if not content.strip():
        return {}
    metrics = {}
    for entry in content.split(","):
        name, separator, number = entry.partition("=")
        if not separator:
            name, separator, number = entry.partition(":")
        if not separator:
            raise ValueError(f"{entry.strip()!r} is not name=value")
        metrics[name.strip()] = _number(number)
    return metrics


def _json(content: str) -> Mapping[str, float]:
    report = msgspec.json.decode(content)
    if not isinstance(report, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - what it says is wrong
    metrics: dict[str, float] = {}
    for key, value in report.items():
        name = _FIELDS.get(key, key)
        if isinstance(value, dict):
            metrics |= {f"{name}.{inner}": _number(number) for inner, number in value.items()}
        else:
            metrics[name] = _number(value)
    return metrics


def _binary(content: str) -> Mapping[str, float]:
    padded = content + "=" * (-len(content) % 4)  # gRPC sends it without padding
    metrics: dict[str, float] = {}
    for field, value in OrcaLoadReport.FromString(b64decode(padded, validate=True)).ListFields():
        if isinstance(value, float):
            metrics[field.name] = value
        else:
            metrics |= {f"{field.name}.{key}": number for key, number in value.items()}
    return metrics


def _number(value: Any) -> float:  # noqa: ANN401 - whatever JSON has there
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return nan


_READERS: Final[Mapping[str, _Reader]] = {
    "TEXT": _text,
    "JSON": _json,
    "BIN": _binary,
}
