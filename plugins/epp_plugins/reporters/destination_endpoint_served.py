"""``destination-endpoint-served-verifier``: tells the client which endpoint served; for tests.

Every answer gets the header ``x-conformance-test-served-endpoint`` with the ``ip:port`` that the
gateway reports in its metadata, ``envoy.lb`` / ``x-gateway-destination-endpoint-served``. It is the
gateway's word alone, never what was picked: of a gateway that reports nothing the header says
``fail: missing destination endpoint served metadata``. It shows addresses of the pool to clients:
made for conformance tests, not for production.

Reads:  what the gateway reports with the answer's headers.
Example::

    plugins:
      - type: destination-endpoint-served-verifier
"""

from typing import ClassVar, Final

import msgspec

from epp.request_control.plugins import ResponseHead, ResponseHeader
from epp.scheduling import CycleState, Endpoint, LLMRequest

HEADER: Final = "x-conformance-test-served-endpoint"
NOT_REPORTED: Final = "fail: missing destination endpoint served metadata"


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``destination-endpoint-served-verifier``: none."""


class DestinationEndpointServedVerifier(ResponseHeader):
    """Writes the endpoint that the gateway says has served into a header of the answer."""

    type: ClassVar[str] = "destination-endpoint-served-verifier"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        response.set_headers[HEADER] = response.served or NOT_REPORTED
