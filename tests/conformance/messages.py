"""ext_proc from Envoy's side, with a second implementation of the messages."""

import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from conformance.gateways import BODY, PIN

with warnings.catch_warnings():
    # The generated modules (2.2.0) raise pydantic's deprecations when they are imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core.v3 import HeaderMap, HeaderValue
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
        ProcessingModeBodySendMode as BodyMode,
    )
    from envoy_data_plane.envoy.service.ext_proc.v3 import (
        CommonResponse,
        HttpBody,
        HttpHeaders,
        ProcessingRequest,
        ProcessingResponse,
        ProtocolConfiguration,
    )

__all__ = ["METHOD", "BodyMode", "asked", "replies", "routed"]

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


def asked(mode: int, pin: str, *, has_body: bool) -> Sequence[ProcessingRequest]:
    """Return the messages of one request."""
    headers = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r-1", PIN: pin}
    lines = [HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()]
    first = ProcessingRequest(
        request_headers=HttpHeaders(headers=HeaderMap(headers=lines), end_of_stream=not has_body),
        protocol_config=ProtocolConfiguration(request_body_mode=BodyMode(mode)),
    )
    body = ProcessingRequest(request_body=HttpBody(body=BODY, end_of_stream=True))
    return [first, body] if has_body and mode != BodyMode.NONE else [first]


async def replies(
    port: int, requests: Sequence[ProcessingRequest], *, method: str = METHOD
) -> list[ProcessingResponse]:
    """Return what an endpoint picker answers until Envoy leaves."""

    async def messages() -> AsyncIterator[ProcessingRequest]:
        for request in requests:
            yield request

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        process: Any = channel.stream_stream(
            method, request_serializer=bytes, response_deserializer=ProcessingResponse.parse
        )
        return [each async for each in process(messages(), timeout=10)]


def routed(reply: ProcessingResponse) -> CommonResponse | None:
    """Return the reply in which headers are changed, if this is one."""
    part = reply.request_headers or reply.request_body
    response = None if part is None else part.response
    return response if response is not None and response.header_mutation is not None else None
