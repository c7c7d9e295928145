"""The raw reply of an endpoint picker, read with a second implementation of the messages."""

import pytest

from conformance.gateways import DESTINATION, Pool
from conformance.messages import BodyMode, asked, replies, routed

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
        received = await replies(pool.picker.ports.grpc, asked(mode, address, has_body=has_body))
        ((reply, response),) = ((each, found) for each in received if (found := routed(each)))
        assert response.clear_route_cache
        assert response.header_mutation is not None
        (header,) = response.header_mutation.set_headers
        assert header.header is not None
        destination = (header.header.key, header.header.raw_value.decode())
        assert destination == (DESTINATION, address)
        assert reply.dynamic_metadata is not None
        assert reply.dynamic_metadata.to_dict() == {"envoy.lb": {DESTINATION: address}}
