"""Envoy's end of an ext_proc stream, on envoy-data-plane's messages and a real gRPC channel.

Those messages are generated from Envoy's own files by a library that shares no code with ours: what
is read here is what Envoy would read.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
import grpc.aio

from epp.ext_proc import METHOD
from parity.transcript import Transcript, error_of

with warnings.catch_warnings():
    # The generated modules (2.2.0) raise pydantic's deprecations when they are imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core.v3 import HeaderMap, HeaderValue, Metadata
    from envoy_data_plane.envoy.service.ext_proc.v3 import (
        BodyResponse,
        HeaderMutation,
        HeadersResponse,
        HttpBody,
        HttpHeaders,
        HttpTrailers,
        ImmediateResponse,
        ProcessingRequest,
        ProcessingResponse,
    )
    from envoy_data_plane.google.protobuf import Struct

DESTINATION = "x-gateway-destination-endpoint"
DROP_REASON = "x-llm-d-request-dropped-reason"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"

Kind = Literal[
    "request_headers",
    "request_body",
    "request_trailers",
    "response_headers",
    "response_body",
    "response_trailers",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One message of Envoy's."""

    kind: Kind
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    end: bool = False


def message(step: Step, metadata: Mapping[str, Any]) -> ProcessingRequest:
    """Return the message with ``metadata`` beside it, as Envoy has them in every one."""
    values = [HeaderValue(key=key, raw_value=v.encode()) for key, v in step.headers.items()]
    content: HttpHeaders | HttpBody | HttpTrailers
    if step.kind.endswith("body"):
        content = HttpBody(body=step.body, end_of_stream=step.end)
    elif step.kind.endswith("trailers"):
        content = HttpTrailers(trailers=HeaderMap(headers=values))
    else:
        content = HttpHeaders(headers=HeaderMap(headers=values), end_of_stream=step.end)
    fields: dict[str, Any] = {step.kind: content}
    if metadata:
        structs = {key: Struct.from_dict(value) for key, value in metadata.items()}
        fields["metadata_context"] = Metadata(filter_metadata=structs)
    return ProcessingRequest(**fields)


def opened(channel: grpc.aio.Channel) -> Any:
    """Open a stream; what is read of it are Envoy's own messages."""
    return channel.stream_stream(
        METHOD, request_serializer=bytes, response_deserializer=ProcessingResponse.parse
    )()


def destination_of(reply: object) -> str:
    """Return where a reply sends the request, which it must."""
    assert isinstance(reply, ProcessingResponse)
    assert reply.request_headers is not None
    assert reply.request_headers.response is not None
    return _set(reply.request_headers.response.header_mutation)[DESTINATION]


async def exchange(
    channel: grpc.aio.Channel,
    steps: Sequence[Step],
    *,
    metadata: Mapping[str, Any],
    names: Mapping[str, str],
) -> Transcript:
    """Send ``steps`` one after the other, and read all that comes back.

    Args:
        channel: To the EPP.
        steps: What Envoy sends in full duplex, the mode of an Envoy that tells none.
        metadata: What it tells with each, by namespace.
        names: The fixture's addresses by those where the servers really are.
    """
    call = opened(channel)
    for step in steps:
        await call.write(message(step, metadata))
    await call.done_writing()
    request_id = steps[0].headers.get("x-request-id", "")
    transcript = Transcript()
    while (reply := await call.read()) is not grpc.aio.EOF:
        assert isinstance(reply, ProcessingResponse)
        _note(transcript, reply, names, request_id)
    transcript.grpc_status = (await call.code()).name
    return transcript


def _note(
    transcript: Transcript, reply: ProcessingResponse, names: Mapping[str, str], request_id: str
) -> None:
    if reply.dynamic_metadata is not None:
        transcript.metadata = _named(reply.dynamic_metadata.to_dict(), names)
    if reply.immediate_response is not None:
        _note_error(transcript, reply.immediate_response, request_id)
    elif reply.request_headers is not None:
        _note_route(transcript, reply.request_headers, names)
    elif reply.request_body is not None:
        transcript.pieces += (_piece(reply.request_body),)
    elif reply.request_trailers is not None:
        transcript.request_trailers = True
    elif reply.response_headers is not None:
        common = reply.response_headers.response
        transcript.response_headers = _set(common.header_mutation if common else None)
    elif reply.response_body is not None:
        transcript.response_pieces += (_piece(reply.response_body),)
    else:
        assert reply.response_trailers is not None
        transcript.response_trailers = True


def _note_error(transcript: Transcript, reply: ImmediateResponse, request_id: str) -> None:
    assert reply.status is not None
    transcript.status = int(reply.status.code)
    headers = _set(reply.headers)
    transcript.drop_reason = headers.pop(DROP_REASON, "")
    transcript.content_type = headers.pop("content-type", "")
    transcript.retry_after = headers.pop("retry-after", "")
    named = headers.pop("x-request-id", "")
    assert named in {"", request_id} if request_id else len(named) in {0, 36}
    transcript.names_request = bool(named)
    assert headers == {}
    transcript.body = error_of(reply.body, request_id)


def _note_route(transcript: Transcript, reply: HeadersResponse, names: Mapping[str, str]) -> None:
    common = reply.response
    assert common is not None
    assert common.header_mutation is not None
    headers = _set(common.header_mutation)
    transcript.destination = names[headers.pop(DESTINATION)]
    transcript.headers = headers
    transcript.removed = tuple(sorted(common.header_mutation.remove_headers))
    transcript.clears_route_cache = common.clear_route_cache


def _piece(reply: BodyResponse) -> tuple[bytes, bool]:
    assert reply.response is not None
    assert reply.response.body_mutation is not None
    streamed = reply.response.body_mutation.streamed_response
    assert streamed is not None
    return streamed.body, streamed.end_of_stream


def _set(mutation: HeaderMutation | None) -> dict[str, str]:
    """Return the headers that are set; the value is in the field that Envoy reads."""
    found: dict[str, str] = {}
    for option in mutation.set_headers if mutation else ():
        assert option.header is not None
        assert option.header.value == ""
        found[option.header.key.lower()] = option.header.raw_value.decode()
    return found


def _named(value: Any, names: Mapping[str, str]) -> Any:
    """Return metadata with the fixture's addresses in place of the real ones."""
    if isinstance(value, Mapping):
        return {names.get(key, key): _named(each, names) for key, each in value.items()}
    return names.get(value, value) if isinstance(value, str) else value
