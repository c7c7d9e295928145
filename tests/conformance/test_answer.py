"""The raw answer of an endpoint picker, read with a second implementation of the messages."""

import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from conformance.gateways import BODY, DESTINATION, PIN, Pool

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

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


def asked(mode: BodyMode, pin: str, *, has_body: bool) -> Sequence[ProcessingRequest]:
    """Return the messages of one request."""
    headers = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r-1", PIN: pin}
    lines = [HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()]
    first = ProcessingRequest(
        request_headers=HttpHeaders(headers=HeaderMap(headers=lines), end_of_stream=not has_body),
        protocol_config=ProtocolConfiguration(request_body_mode=mode),
    )
    body = ProcessingRequest(request_body=HttpBody(body=BODY, end_of_stream=True))
    return [first, body] if has_body and mode != BodyMode.NONE else [first]


async def answers(port: int, requests: Sequence[ProcessingRequest]) -> list[ProcessingResponse]:
    """Return what an endpoint picker answers until Envoy leaves."""

    async def messages() -> AsyncIterator[ProcessingRequest]:
        for request in requests:
            yield request

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        process: Any = channel.stream_stream(
            METHOD, request_serializer=bytes, response_deserializer=ProcessingResponse.parse
        )
        return [each async for each in process(messages(), timeout=10)]


def routed(answer: ProcessingResponse) -> CommonResponse | None:
    """Return the answer in which headers are changed, if this is one."""
    part = answer.request_headers or answer.request_body
    response = None if part is None else part.response
    return response if response is not None and response.header_mutation is not None else None


@pytest.mark.parametrize(
    ("mode", "has_body"),
    [
        pytest.param(BodyMode.FULL_DUPLEX_STREAMED, True, id="full duplex"),
        pytest.param(BodyMode.FULL_DUPLEX_STREAMED, False, id="full duplex, no body"),
        pytest.param(BodyMode.BUFFERED, True, id="buffered"),
        pytest.param(BodyMode.BUFFERED, False, id="buffered, no body"),
        pytest.param(BodyMode.NONE, True, id="none"),
    ],
)
async def test_case_14_header_and_metadata_say_the_same_and_the_route_is_looked_up_anew(
    pools: dict[str, Pool], mode: BodyMode, has_body: bool
) -> None:
    pool = pools["primary"]
    for address in pool.addresses:
        received = await answers(pool.picker.ports.grpc, asked(mode, address, has_body=has_body))
        ((answer, response),) = ((each, found) for each in received if (found := routed(each)))
        assert response.clear_route_cache
        assert response.header_mutation is not None
        (header,) = response.header_mutation.set_headers
        assert header.header is not None
        told = (header.header.key, header.header.raw_value.decode())
        assert told == (DESTINATION, address)
        assert answer.dynamic_metadata is not None
        assert answer.dynamic_metadata.to_dict() == {"envoy.lb": {DESTINATION: address}}
