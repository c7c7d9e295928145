"""``destination-endpoint-served-verifier``: tells the client which endpoint served; for tests.

The plugin sets the response header ``x-conformance-test-served-endpoint`` to the ``ip:port`` that
the gateway reports in the metadata ``envoy.lb`` / ``x-gateway-destination-endpoint-served``. The
value never comes from the decision of the endpoint picker: if the gateway reports nothing, it is
``fail: missing destination endpoint served metadata``. Do not use the plugin in production, because
it shows addresses of the pool to clients.

Reads:  the metadata that the gateway sends with the response headers.
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
    """Sets a response header to the endpoint that served the request, as the gateway reports it."""

    type: ClassVar[str] = "destination-endpoint-served-verifier"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        response.set_headers[HEADER] = response.served or NOT_REPORTED
