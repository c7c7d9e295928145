"""Envoy's end of a stream: sends its messages and decodes the replies."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from epp.ext_proc import ExtProcService, ExtProcSettings, OneHandler
from epp.ext_proc.processing_response import DEFAULTS, refused
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import EndCause, RequestError, errors
from epp.tracing import Tracer
from tools.harness.request_control import BODY, Epp
from tools.harness.wires import Wire

Mode = pb.ProcessingMode
DESTINATION = "x-gateway-destination-endpoint"
DROP_REASON = "x-llm-d-request-dropped-reason"
A = "10.0.0.1:8000"
"""The first endpoint of ``make_pool``."""
CONTINUE_REQUEST_HEADERS = pb.ProcessingResponse(request_headers=pb.HeadersResponse())
CONTINUE_REQUEST_TRAILERS = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
CONTINUE_RESPONSE_HEADERS = pb.ProcessingResponse(response_headers=pb.HeadersResponse())
CONTINUE_RESPONSE_TRAILERS = pb.ProcessingResponse(response_trailers=pb.TrailersResponse())
POST = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r-1"}

FULL_DUPLEX = (Mode.FULL_DUPLEX_STREAMED, Mode.FULL_DUPLEX_STREAMED)
LEAN = (Mode.FULL_DUPLEX_STREAMED, Mode.NONE)
BUFFERED = (Mode.BUFFERED, Mode.NONE)
ADAPTIVE = (Mode.BUFFERED, Mode.STREAMED)
NO_BODIES = (Mode.NONE, Mode.NONE)

Headers = Mapping[str, str] | Sequence[tuple[str, str]]
"""By name, or as a list where names are repeated."""

Modes = tuple[Mode.BodySendMode, Mode.BodySendMode]

on_one_wire = pytest.mark.parametrize("wire", ["direct"], indirect=True)
"""For a module whose results do not depend on the wire.

Tests of stream ends, time limits, held bytes, pauses, protocol rules (tests/conformance) and random
message sequences run on all wires.
"""

on_no_transport = pytest.mark.parametrize("wire", ["direct"], indirect=True)
"""For a test of a situation that no transport produces; a comment gives the reason."""

on_each_transport = pytest.mark.parametrize("wire", ["grpcio", "http2"], indirect=True)
"""For a test of a transport's own behaviour."""


class Envoy:
    """Drives one stream of a real service and director over the wire of the test."""

    wire: ClassVar[Wire]
    """Set by the fixture of this name."""
    sends_ahead = False
    """Value of ``send_body_without_waiting_for_header_response``."""

    def __init__(
        self,
        epp: Epp,
        modes: Modes | None = LEAN,
        service: ExtProcService | None = None,
        *,
        settings: ExtProcSettings | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.epp = epp
        self.modes = modes
        self.service = service or ExtProcService(
            OneHandler(epp.director),
            epp.clock,
            settings=settings,
            metrics=epp.metrics,
            tracer=tracer or epp.tracer,
        )
        self.line = self.wire.open(self.service)
        self.stream = self.line.stream
        self._taken = 0

    @property
    def replies(self) -> list[pb.ProcessingResponse]:
        """Replies received since the last ``take``."""
        received = self.line.received[self._taken :]
        return [pb.ProcessingResponse.FromString(reply) for reply in received]

    @property
    def all_replies(self) -> list[pb.ProcessingResponse]:
        """All replies since the stream was opened."""
        return [pb.ProcessingResponse.FromString(reply) for reply in self.line.received]

    @property
    def statuses(self) -> list[int]:
        """HTTP statuses of the ImmediateResponses since the last ``take``; 0 for other replies."""
        return [reply.immediate_response.status.code for reply in self.replies]

    @property
    def kinds(self) -> list[str | None]:
        """Kinds of the replies received since the last ``take``."""
        return [reply.WhichOneof("response") for reply in self.replies]

    @property
    def finished(self) -> list[tuple[int, str]]:
        """Status and message with which the service ended the gRPC stream, if it did."""
        return list(self.line.finished)

    def take(self) -> list[pb.ProcessingResponse]:
        """Return the replies since the last ``take``."""
        replies = self.replies
        self._taken += len(replies)
        return replies

    def send(self, request: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        """Send one message and return the replies to it."""
        self.take()
        self.line.message(request.SerializeToString())
        return self.replies

    def garble(self, data: bytes = b"\xff") -> None:
        """Send bytes that are not a ProcessingRequest."""
        self.line.message(data)

    def half_close(self) -> None:
        """Half-close the stream."""
        self.line.half_close()

    def reset(self) -> None:
        """Reset the stream, as Envoy does at every end."""
        self.line.reset()

    def drain(self) -> None:
        """Drain the stream, as a stopping EPP does."""
        self.wire.call(self.stream.drain)

    def writable(self) -> None:
        """Signal that the transport has room."""
        self.wire.call(self.stream.writable)

    def close(self, cause: EndCause) -> None:
        """Close the stream again."""
        self.wire.call(lambda: self.stream.close(cause))

    def request_headers(
        self,
        headers: Headers = POST,
        *,
        end: bool = False,
        subset: Any = None,
    ) -> list[pb.ProcessingResponse]:
        message = pb.ProcessingRequest(request_headers=http_headers(headers, end))
        if self.modes is not None:
            config = message.protocol_config
            config.SetInParent()
            config.request_body_mode, config.response_body_mode = self.modes
            config.send_body_without_waiting_for_header_response = self.sends_ahead
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hint.update({f"{DESTINATION}-subset": subset})
        return self.send(message)

    def request_body(self, body: bytes = BODY, *, end: bool = True) -> list[pb.ProcessingResponse]:
        message = pb.HttpBody(body=body, end_of_stream=end)
        return self.send(pb.ProcessingRequest(request_body=message))

    def request_trailers(self) -> list[pb.ProcessingResponse]:
        return self.send(pb.ProcessingRequest(request_trailers=pb.HttpTrailers()))

    def response_headers(
        self,
        status: str = "200",
        *,
        headers: Headers = (),
        end: bool = False,
        served: str = "",
    ) -> list[pb.ProcessingResponse]:
        more = headers.items() if isinstance(headers, Mapping) else headers
        all_headers = [(":status", status), *more]
        message = pb.ProcessingRequest(response_headers=http_headers(all_headers, end))
        if served:
            metadata = message.metadata_context.filter_metadata["envoy.lb"]
            metadata.update({f"{DESTINATION}-served": served})
        return self.send(message)

    def response_body(
        self, body: bytes = b"data: x\n\n", *, end: bool = False
    ) -> list[pb.ProcessingResponse]:
        message = pb.HttpBody(body=body, end_of_stream=end)
        return self.send(pb.ProcessingRequest(response_body=message))

    def response_trailers(self) -> list[pb.ProcessingResponse]:
        return self.send(pb.ProcessingRequest(response_trailers=pb.HttpTrailers()))

    def post(self, body: bytes = BODY) -> list[pb.ProcessingResponse]:
        """Send a whole request; return the replies to its last message."""
        replies = self.request_headers()
        has_body = self.modes is None or self.modes[0] != Mode.NONE
        return self.request_body(body) if has_body else replies


def http_headers(headers: Headers, end: bool) -> pb.HttpHeaders:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return pb.HttpHeaders(
        headers=pb.HeaderMap(
            headers=[pb.HeaderValue(key=k, raw_value=v.encode()) for k, v in pairs]
        ),
        end_of_stream=end,
    )


def error_classes() -> set[type[RequestError]]:
    """Return all classes of request errors."""
    classes = (each for _, each in inspect.getmembers(errors, inspect.isclass))
    return {each for each in classes if issubclass(each, RequestError)}


def error_response(
    error: RequestError,
    settings: ExtProcSettings = DEFAULTS,
    *,
    request_id: str = "r-1",
    path: str = "",
) -> pb.ImmediateResponse:
    """Return the decoded reply to a request that ``error`` refuses."""
    data = refused(error, request_id, settings, path=path)
    return pb.ProcessingResponse.FromString(data).immediate_response


def error_headers(error: pb.ImmediateResponse) -> dict[str, str]:
    """Return the headers of an error response."""
    return {
        option.header.key: option.header.raw_value.decode() for option in error.headers.set_headers
    }


def set_headers(response: pb.CommonResponse) -> dict[str, str]:
    """Return the headers that a reply sets; it must remove none."""
    headers, removed = changed_headers(response)
    assert removed == []
    return headers


def changed_headers(response: pb.CommonResponse) -> tuple[dict[str, str], list[str]]:
    """Return the headers that a reply sets and the names that it removes."""
    options = response.header_mutation.set_headers
    for option in options:
        assert option.append_action == pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        assert not option.header.value
    return (
        {option.header.key: option.header.raw_value.decode() for option in options},
        list(response.header_mutation.remove_headers),
    )


def assert_routes(
    reply: pb.ProcessingResponse, kind: str, address: str, **more_headers: str
) -> None:
    """Assert that header and dynamic metadata name ``address`` and nothing else is changed."""
    assert reply.WhichOneof("response") == kind
    response: pb.CommonResponse = getattr(reply, kind).response
    more = {name.replace("_", "-"): value for name, value in more_headers.items()}
    assert set_headers(response) == {DESTINATION: address, **more}
    assert response.clear_route_cache
    assert response.status == pb.CommonResponse.CONTINUE
    assert not response.HasField("body_mutation")
    metadata = reply.dynamic_metadata.fields
    assert list(metadata) == ["envoy.lb"]
    fields = metadata["envoy.lb"].struct_value.fields
    assert {key: value.string_value for key, value in fields.items()} == {DESTINATION: address}


def echoed(replies: list[pb.ProcessingResponse], kind: str) -> tuple[bytes, list[bool]]:
    """Return the body that the replies send back, and their end-of-stream flags."""
    pieces = []
    for reply in replies:
        assert reply.WhichOneof("response") == kind
        response: pb.CommonResponse = getattr(reply, kind).response
        assert not response.HasField("header_mutation")
        assert response.body_mutation.WhichOneof("mutation") == "streamed_response"
        pieces.append(response.body_mutation.streamed_response)
    assert all(len(piece.body) <= 62_000 for piece in pieces)
    return b"".join(p.body for p in pieces), [p.end_of_stream for p in pieces]
