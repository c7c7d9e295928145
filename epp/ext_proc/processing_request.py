"""Decodes ProcessingRequests: the kind of the message, its content and its context.

Envoy writes the ``request`` field (headers, a body chunk, trailers) first. The fields after it,
metadata and configured modes, are the same in every message of a stream or of all streams. So a
message is split there: the first part is decoded by hand, the second is decoded once and cached by
its bytes. Protobuf defines the message of concatenated bytes as the merge of the messages of its
parts, so this is exact unless the second part has a ``request`` field too; protobuf decodes such
messages as a whole.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value

from epp.ext_proc import wire
from epp.ext_proc.modes import BodyModes
from epp.ext_proc.processing_response import METADATA_NAMESPACE
from epp.ext_proc.response_head import by_name, read_response_head, response_head
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import ResponseSource

SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
"""Key in the request's metadata: the endpoints that the gateway allows for the request."""
SERVED_KEY: Final = "x-gateway-destination-endpoint-served"
"""Key in the response's metadata: the ``ip:port`` that served the request."""
SERVED_ATTRIBUTE: Final = "upstream.address"
"""Attribute of a response with the same address, even if the request was hedged."""
DETAILS: Final = "response.code_details"
"""Attribute of a response: ``via_upstream``, or why Envoy made the response itself."""

_RESPONSE_SOURCES: Final = {"": ResponseSource.UNKNOWN, "via_upstream": ResponseSource.SERVER}
_LIMITS: Final = frozenset({"overflow", "max_stream_duration"})
"""Parts of details that name limits of Envoy, though they begin like those of a failed server."""

EMPTY_LAST_CHUNK: Final = pb.ProcessingRequest(
    response_body=pb.HttpBody(end_of_stream=True)
).SerializeToString()
"""The last message of most response bodies."""
_MAX_CACHED_BYTES: Final = 1024
_CACHED_CONTEXTS: Final = 1024

# Tuples, because an object with fields would cost 0.3 us for each message.

Head = tuple[dict[str, str], int, bool]
"""The headers of a request by lower-case name, with the last value of a repeated one; their size in
Envoy's message in bytes; whether neither a body nor trailers follow."""

Chunk = tuple[bytes, bool]
"""A chunk of a body, and its end-of-stream flag."""

RequestChunk = tuple[bytes | memoryview, bool]
"""The same for a request; a long chunk, which only a buffered body has, is a memoryview."""


class MessageContext(NamedTuple):
    """The fields of a message besides ``request``."""

    body_modes: BodyModes | None
    """Envoy's configuration; only the first message of a stream has it."""
    served: str
    """The ``ip:port`` that served the request, from the gateway; "" if unknown."""
    subset: tuple[str, ...] | None
    """Endpoints that the gateway allows, ``ip:port`` or ``ip``; None without a restriction."""
    response_source: ResponseSource
    """Who made a response; UNKNOWN if the gateway does not say."""


Message = tuple[str | None, Any, MessageContext]
"""Kind (name of the ``request`` field), content, context.

The content is a Head, LazyResponseHead, Chunk or HttpTrailers. It is Any because its type depends
on the kind.
"""


_latest: Final[dict[int, tuple[bytes, MessageContext]]] = {}
"""Bytes and context of the latest message of each kind, by its first byte: comparing the bytes
takes a third of the time of finding them in the cache."""


def decode(data: bytes) -> Message:
    """Return the ProcessingRequest in ``data``.

    Raises:
        DecodeError: ``data`` is not a ProcessingRequest.
    """
    first = data[0] if data else 0
    decoder = _DECODERS.get(first)
    start, end = wire.content(data) if decoder else (0, 0)
    if decoder and start and len(data) - end <= _MAX_CACHED_BYTES:
        after = data[end:]
        latest = _latest.get(first)
        context: MessageContext | None
        if latest is not None and latest[0] == after:
            context = latest[1]
        elif (context := _context(after)) is not None:
            _latest[first] = (after, context)
        if context is not None:
            kind, read = decoder
            content = read(data, start, end)
            if content is not None:
                return kind, content, context
    return _by_protobuf(data)


def context_bytes(data: bytes) -> bytes:
    """Return the fields after ``request`` of a message, if they can be decoded alone; else b""."""
    start, end = wire.content(data)
    after = data[end:] if start else b""
    if len(after) > _MAX_CACHED_BYTES or _context(after) is None:
        return b""
    return after


def _by_protobuf(data: bytes) -> Message:
    request = pb.ProcessingRequest.FromString(data)
    kind = request.WhichOneof("request")
    content = getattr(request, kind) if kind else None
    if isinstance(content, pb.HttpBody):
        content = content.body, content.end_of_stream
    elif isinstance(content, pb.HttpHeaders):
        content = _head(content) if kind == "request_headers" else response_head(content)
    return kind, content, _read_context(request)


@lru_cache(maxsize=_CACHED_CONTEXTS)
def _context(data: bytes) -> MessageContext | None:
    """Return the context in the fields after ``request``; None if they are not decodable alone."""
    try:
        request = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        return None
    return _read_context(request) if request.WhichOneof("request") is None else None


def _read_context(request: pb.ProcessingRequest) -> MessageContext:
    modes = None
    if request.HasField("protocol_config"):
        config = request.protocol_config
        modes = BodyModes(
            config.request_body_mode,
            config.response_body_mode,
            config.send_body_without_waiting_for_header_response,
        )
    served = _attribute(request, SERVED_ATTRIBUTE)
    if not served:
        value = _metadata(request, METADATA_NAMESPACE, SERVED_KEY)
        served = "" if value is None else value.string_value
    return MessageContext(
        modes,
        served,
        _subset(_metadata(request, SUBSET_NAMESPACE, SUBSET_KEY)),
        _response_source(_attribute(request, DETAILS)),
    )


def _attribute(request: pb.ProcessingRequest, name: str) -> str:
    """Return an attribute that is text; "" if there is none."""
    # Sorted, because protobuf iterates over a map in no fixed order; Envoy sends one filter.
    for filter_name in sorted(request.attributes):
        fields = request.attributes[filter_name].fields
        if name in fields:
            return fields[name].string_value
    return ""


def _response_source(details: str) -> ResponseSource:
    """Return who made the response, by Envoy's response code details."""
    if details in _RESPONSE_SOURCES:
        return _RESPONSE_SOURCES[details]
    is_limit = any(limit in details for limit in _LIMITS)
    is_for_server = details.startswith("upstream_") and not is_limit
    return ResponseSource.GATEWAY_FOR_SERVER if is_for_server else ResponseSource.GATEWAY


def _metadata(request: pb.ProcessingRequest, namespace: str, key: str) -> Value | None:
    if not request.HasField("metadata_context"):
        return None
    metadata = request.metadata_context.filter_metadata
    return metadata[namespace].fields.get(key) if namespace in metadata else None


def _subset(value: Value | None) -> tuple[str, ...] | None:
    """Return the entries of a subset hint; a hint of an unknown form has none.

    A hint is a list, or one string with commas as Envoy's header_to_metadata filter makes it.
    """
    if value is None or value.WhichOneof("kind") in {None, "null_value"}:
        return None
    if value.WhichOneof("kind") == "string_value":
        entries = value.string_value.split(",")
    else:
        entries = [each.string_value for each in value.list_value.values]
    return tuple(entry.strip() for entry in entries if entry.strip())


def _headers(data: bytes, start: int, end: int) -> Head:
    read = wire.read_headers(data, start, end)
    return _head(pb.HttpHeaders.FromString(data[start:end])) if read is None else read


def _head(message: pb.HttpHeaders) -> Head:
    headers = message.headers
    return by_name(headers), headers.ByteSize(), message.end_of_stream


def _trailers(data: bytes, start: int, end: int) -> pb.HttpTrailers:
    return pb.HttpTrailers.FromString(data[start:end])


_DECODERS: Final[dict[int, tuple[str, Callable[[bytes, int, int], Any]]]] = {
    wire.tag(number): (pb.ProcessingRequest.DESCRIPTOR.fields_by_number[number].name, read)
    for number, read in (
        (pb.ProcessingRequest.REQUEST_HEADERS_FIELD_NUMBER, _headers),
        (pb.ProcessingRequest.RESPONSE_HEADERS_FIELD_NUMBER, read_response_head),
        (pb.ProcessingRequest.REQUEST_BODY_FIELD_NUMBER, wire.read_request_body),
        (pb.ProcessingRequest.RESPONSE_BODY_FIELD_NUMBER, wire.read_body),
        (pb.ProcessingRequest.REQUEST_TRAILERS_FIELD_NUMBER, _trailers),
        (pb.ProcessingRequest.RESPONSE_TRAILERS_FIELD_NUMBER, _trailers),
    )
}
"""Kind and decoder by the first byte of a message; a decoder returns None if it cannot decode."""
