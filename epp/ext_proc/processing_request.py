"""Reading what Envoy sends: which phase of the request it is, and what stands beside it.

Envoy writes a message's phase first, and after it what is the same in every message of a stream,
or of all streams: metadata, the configured modes. So a message is cut there: the phase is read on
its own, and what follows it is read once and then found by its bytes. Protobuf defines the message
of joined bytes as the merge of the messages of its parts, so this is exact as long as nothing after
the phase is a phase too; a message of any other shape is left to protobuf as a whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value

from epp.ext_proc import wire
from epp.ext_proc.modes import BodyModes
from epp.ext_proc.processing_response import METADATA_NAMESPACE
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
"""Key in the request's metadata: the endpoints that the gateway lets the request go to."""
SERVED_KEY = "x-gateway-destination-endpoint-served"
"""Key in the response's metadata: the ``ip:port`` that answered."""

_STATUS_DIGITS = 3
_MAX_CACHED_BYTES = 1024
_CACHED_CONTEXTS = 1024

Chunk = tuple[bytes, bool]
"""A piece of a body, and whether it is the last of the stream."""

RequestChunk = tuple[bytes | memoryview, bool]
"""The same of a request; a view of its message if it is long, which only a buffered body is."""


@dataclass(frozen=True, slots=True)
class MessageContext:
    """What stands beside the phase in a message."""

    body_modes: BodyModes | None
    """How Envoy is configured; only the first message of a stream has it."""
    served: str
    """The ``ip:port`` that the gateway says has served; "" if it does not say."""
    subset: tuple[str, ...] | None
    """What the gateway lets the request go to, ``ip:port`` or ``ip``; None if it does not say."""


class Head(NamedTuple):
    """The headers of a request or of a response."""

    headers: dict[str, str]
    """By lower-case name; the last of a repeated one."""
    size: int
    """Bytes that they take in Envoy's message."""
    end_of_stream: bool
    """No body follows, and no trailers."""


Message = tuple[str | None, Any, MessageContext]
"""Name of the phase; its :class:`Head`, trailers (HttpTrailers) or :data:`Chunk`; the rest.

Any, because the name decides the type of the second and a tuple cannot say so; an object with
fields would cost 0.3 us for each chunk.
"""


def decode(data: bytes) -> Message:
    """Return the message in ``data``, a ProcessingRequest.

    Raises:
        DecodeError: It is none.
    """
    plain = _PHASES.get(data[0]) if data else None
    found = wire.content(data) if plain else None
    if plain and found:
        start, end = found
        context = _context(data[end:]) if len(data) - end <= _MAX_CACHED_BYTES else None
        if context is not None:
            kind, read = plain
            content = read(data, start, end)
            if content is not None:
                return kind, content, context
    return _by_protobuf(data)


def _by_protobuf(data: bytes) -> Message:
    request = pb.ProcessingRequest.FromString(data)
    kind = request.WhichOneof("request")
    content = getattr(request, kind) if kind else None
    if isinstance(content, pb.HttpBody):
        content = content.body, content.end_of_stream
    elif isinstance(content, pb.HttpHeaders):
        content = _head(content)
    return kind, content, _read_context(request)


@lru_cache(maxsize=_CACHED_CONTEXTS)
def _context(data: bytes) -> MessageContext | None:
    """Return what fields after the phase say; None if they cannot be read without the phase."""
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
    served = _metadata(request, METADATA_NAMESPACE, SERVED_KEY)
    return MessageContext(
        modes,
        "" if served is None else served.string_value,
        _subset(_metadata(request, SUBSET_NAMESPACE, SUBSET_KEY)),
    )


def _metadata(request: pb.ProcessingRequest, namespace: str, key: str) -> Value | None:
    if not request.HasField("metadata_context"):
        return None
    metadata = request.metadata_context.filter_metadata
    return metadata[namespace].fields.get(key) if namespace in metadata else None


def _subset(value: Value | None) -> tuple[str, ...] | None:
    """Return the entries of a hint: a list, or one text with commas as header_to_metadata makes it.

    A hint of any other form names nobody.
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
    return _head(pb.HttpHeaders.FromString(data[start:end])) if read is None else Head(*read)


def _head(message: pb.HttpHeaders) -> Head:
    headers = {
        header.key.lower(): header.raw_value.decode("utf-8", "replace") or header.value
        for header in message.headers.headers
    }
    return Head(headers, message.headers.ByteSize(), message.end_of_stream)


def _trailers(data: bytes, start: int, end: int) -> pb.HttpTrailers:
    return pb.HttpTrailers.FromString(data[start:end])


_PHASES: dict[int, tuple[str, Callable[[bytes, int, int], Any]]] = {
    wire.tag(number): (pb.ProcessingRequest.DESCRIPTOR.fields_by_number[number].name, read)
    for number, read in (
        (pb.ProcessingRequest.REQUEST_HEADERS_FIELD_NUMBER, _headers),
        (pb.ProcessingRequest.RESPONSE_HEADERS_FIELD_NUMBER, _headers),
        (pb.ProcessingRequest.REQUEST_BODY_FIELD_NUMBER, wire.read_request_body),
        (pb.ProcessingRequest.RESPONSE_BODY_FIELD_NUMBER, wire.read_body),
        (pb.ProcessingRequest.REQUEST_TRAILERS_FIELD_NUMBER, _trailers),
        (pb.ProcessingRequest.RESPONSE_TRAILERS_FIELD_NUMBER, _trailers),
    )
}
"""Name of each phase by the tag its message begins with, and what reads it; None if it cannot."""


def status(headers: Mapping[str, str]) -> int:
    """Return the HTTP status of response headers, 0 if they have none."""
    value = headers.get(":status", "")
    # Python refuses to make a number of some thousand digits.
    return int(value) if value.isdecimal() and len(value) <= _STATUS_DIGITS else 0
