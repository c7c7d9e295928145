"""Reads the headers of a call: its method and deadline, or why it is refused."""

import re
from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from epp.transport.grpc.responses import http_status, trailers_only
from epp.transport.http2 import Headers
from epp.transport.interface import OpenStream, StatusCode

_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])").fullmatch

_NOT_ALLOWED, _UNSUPPORTED = 405, 415
_PLAIN = "identity"


class Call(NamedTuple):
    """A call as described by its headers; calls with the same headers share one object."""

    opened: OpenStream | None
    """Opens the handler; None for a refused call."""
    metadata: Mapping[str, str]
    """All headers by lower-case name, including pseudo-headers; of repeated ones the last."""
    timeout_seconds: float = inf
    refusal: bytes = b""
    """Header block of the response to a refused call."""


def read_call(headers: Headers, methods: Mapping[str, OpenStream]) -> Call:
    """Read the headers of a call to one of ``methods``."""
    metadata = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.fields}
    read_only = MappingProxyType(metadata)
    if refusal := _refusal(metadata, methods):
        return Call(None, read_only, refusal=refusal)
    return Call(
        methods[metadata[":path"]],
        read_only,
        timeout_seconds(metadata.get("grpc-timeout", "")),
    )


def timeout_seconds(text: str) -> float:
    """Parse a grpc-timeout header; infinity if it is empty or invalid."""
    found = _TIMEOUT(text)
    return int(found[1]) * _SECONDS[found[2]] if found else inf


def _refusal(metadata: Mapping[str, str], methods: Mapping[str, OpenStream]) -> bytes:
    if metadata[":method"] != "POST":
        return http_status(_NOT_ALLOWED, ("allow", "POST"))
    content_type = metadata.get("content-type", "").lower()
    kind = content_type.partition(";")[0].strip()
    if kind != "application/grpc" and not kind.startswith("application/grpc+"):
        return http_status(_UNSUPPORTED, ("accept", "application/grpc"))
    path = metadata[":path"]
    if path not in methods:
        return trailers_only(StatusCode.UNIMPLEMENTED, f"no method {path[:200]}")
    encoding = metadata.get("grpc-encoding", _PLAIN)
    if encoding != _PLAIN:
        return trailers_only(
            StatusCode.UNIMPLEMENTED,
            f"grpc-encoding {encoding[:100]} is not supported",
            ("grpc-accept-encoding", _PLAIN),
        )
    return b""
